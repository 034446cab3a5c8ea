"""A run that ended with its last checkpoint."""

import shutil
from pathlib import Path

import pytest

from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.resuming.killing import N_STEPS, learn
from tests.sb3.worlds import ALGORITHMS, policy_kwargs


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once") / "run"
    learn(ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(folder, save_freq=40), n=N_STEPS)
    return folder


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """The folder of a run of 192 steps."""
    return Path(shutil.copytree(once, tmp_path / "finished"))
