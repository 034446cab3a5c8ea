"""Files that 0.1.0 wrote before its rooms and presets were renamed (commit f0d0712) still open.

`tests/former` holds them: a model and a checkpoint of A2C with the preset that was called "stdim",
and a sweep with arms of the former names.
"""

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.envs import FakeImageEnv

from rl_infonce import InfoNCEExtractor, ResumeCallback
from rl_infonce.agents import read_encoder
from rl_infonce.cli import main
from rl_infonce.resuming.model_state import differing_settings
from rl_infonce.resuming.resume_callback import _read_state
from rl_infonce.runs.checkpoints import latest_checkpoint
from tests.sb3.worlds import extractors_of

FORMER = Path(__file__).parent / "former"
DIGESTS = json.loads((FORMER / "digests.json").read_text())


def game() -> FakeImageEnv:
    return FakeImageEnv(
        action_dim=3, screen_height=36, screen_width=36, n_channels=1, channel_first=True
    )


def digest(model: BaseAlgorithm) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(model.policy.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


@pytest.mark.skipif(np.__version__.startswith("1."), reason="SB3 pickled it with numpy 2")
def test_a_model_loads_with_one_warning_and_trains_on() -> None:
    with pytest.warns(FutureWarning, match="'stdim' is called 'spatial_cpc' now") as caught:
        model = A2C.load(FORMER / "model.zip", env=game())
    assert len(caught) == 1
    assert digest(model) == DIGESTS["model"]
    model.learn(16)
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 4
    encoder = read_encoder(FORMER / "model.zip")
    assert (encoder.image_shape, encoder.features_dim) == ((1, 36, 36), 8)


def test_a_checkpoint_is_restored_to_the_last_bit(tmp_path: Path) -> None:
    shutil.copytree(FORMER / "checkpoints", tmp_path / "checkpoints")
    kwargs: dict[str, Any] = {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": {  # the checkpoint's name of the preset is "stdim"
            "preset": "spatial_cpc",
            "features_dim": 8,
            "horizons": [2],
            "n_pairs": 4,
        },
        "net_arch": [],
        "optimizer_class": torch.optim.SGD,
    }
    model = A2C("CnnPolicy", game(), n_steps=8, policy_kwargs=kwargs, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the versions installed here may be others
        resume = ResumeCallback(tmp_path / "checkpoints", 16)
        state = _read_state(latest_checkpoint(tmp_path / "checkpoints"))
        assert differing_settings(model, state) == []
        assert resume.restore(model, inexact=True)
        assert (model.num_timesteps, digest(model)) == (16, DIGESTS["checkpoint"])
        model.learn(16, callback=resume, reset_num_timesteps=False)
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 4


@pytest.mark.atari
def test_a_sweep_is_known_as_done_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy")
    sweep = shutil.copytree(FORMER / "sweep", tmp_path / "sweep")
    assert main(["sweep", str(sweep / "grid.toml"), "-o", str(sweep), "--mixed-versions"]) == 0
    said = capsys.readouterr()
    assert "3 cells: 3 done" in said.out
    assert said.err.splitlines() == [
        f"rl-infonce sweep: {what} is now called `{name}`. The former name still works; please use "
        "the new one."
        for what, name in (
            ("the preset `positional_dim`", "positional_cpc"),
            ("the arm `stdim` of a grid", "spatial_cpc"),
        )
    ]
    assert main(["report", str(sweep), "--mixed-versions"]) == 0
    assert "stdim" in (sweep / "report.md").read_text()
