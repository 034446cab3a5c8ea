"""RL Zoo, as installed, trains with the configurations of `rl_infonce.zoo`."""

import importlib.util
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rl_infonce
from rl_infonce import InfoNCEExtractor
from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_policy import read_policy

pytestmark = pytest.mark.slow

GAME = "BreakoutNoFrameskip-v4"
SMALL = {
    "ppo": ["-n", "256", "-params", "n_envs:2", "n_steps:64", "batch_size:64", "n_epochs:1"],
    "dqn": ["-n", "160", "-params", "learning_starts:64", "buffer_size:1000"],
}

needs_the_zoo = pytest.mark.skipif(
    importlib.util.find_spec("rl_zoo3") is None, reason="rl_zoo3 is not installed"
)


def zoo_train(algorithm: str, folder: Path) -> Path:
    """Train a few steps with the Zoo's own command and return the folder of its run."""
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", algorithm, "--env", GAME]
    logs = ["-f", "logs", "-tb", "tb", "--eval-freq", "-1", "--log-interval", "1"]
    flags = [
        "-conf",
        f"rl_infonce.zoo.{algorithm}",
        *SMALL[algorithm],
        "--seed",
        "0",
        "--num-threads",
        "1",
        *logs,
    ]
    answer = subprocess.run(
        [*command, *flags], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    return folder / "logs" / algorithm / f"{GAME}_1"


@needs_the_zoo
@pytest.mark.thorough
@pytest.mark.atari
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_zoo_trains_with_the_loss(algorithm: str, tmp_path: Path) -> None:
    run_dir = zoo_train(algorithm, tmp_path)
    _, tensors = read_model_zip(run_dir / f"{GAME}.zip")
    assert any("features_extractor.infonce.critics." in name for name in tensors)
    head = read_policy(run_dir / f"{GAME}.zip").head.state_dict()
    assert {name: tuple(t.shape) for name, t in head.items()} == {
        "0.weight": (4, 512),
        "0.bias": (4,),
    }, "net_arch is not []"
    (folder,) = (tmp_path / "tb" / GAME).iterdir()
    curves = EventAccumulator(str(folder)).Reload()
    assert {"infonce/loss", "infonce/accuracy_k4"} <= set(curves.Tags()["scalars"])
    assert curves.Scalars("infonce/loss")[-1].value > 0


def test_the_page_says_the_policy_kwargs_in_yaml() -> None:
    page = (Path(rl_infonce.__file__).parent / "zoo" / "README.md").read_text("utf-8")
    (line,) = re.findall("^policy_kwargs: .*$", page, re.MULTILINE)
    string = pytest.importorskip("yaml").safe_load(line)["policy_kwargs"]
    names = {"get_class_by_name": {"rl_infonce.InfoNCEExtractor": InfoNCEExtractor}.__getitem__}
    own = import_module("rl_infonce.zoo.ppo").hyperparams["atari"]["policy_kwargs"]
    assert eval(string, names) == own  # as the Zoo does


@needs_the_zoo
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_extractor_is_all_that_differs_from_the_zoos_own(algorithm: str) -> None:
    (package,) = importlib.util.find_spec("rl_zoo3").submodule_search_locations  # type: ignore[union-attr,misc]
    path = Path(package) / "hyperparams" / f"{algorithm}.yml"
    theirs = pytest.importorskip("yaml").safe_load(path.read_text("utf-8"))["atari"]
    own = dict(import_module(f"rl_infonce.zoo.{algorithm}").hyperparams["atari"])
    kwargs = own.pop("policy_kwargs")
    assert own == theirs
    assert kwargs == {"features_extractor_class": InfoNCEExtractor, "net_arch": []}
