"""The statistics of a `VecNormalize` travel with the weights, and a change of them is noticed."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rl_infonce.agents.saved_statistics import load_statistics
from rl_infonce.resuming.model_bytes import model_bytes
from tests.sb3.fakes import StampedDictEnv, StampedEnv


def pendulum(seed: int = 0) -> VecNormalize:
    return VecNormalize(make_vec_env("Pendulum-v1", 2, seed=seed), gamma=0.9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    model = PPO("MlpPolicy", pendulum(), n_steps=32, batch_size=32, seed=0).learn(64)
    path = tmp_path_factory.mktemp("agent") / "model.zip"
    path.write_bytes(model_bytes(model))
    return path, model


def test_what_was_saved_is_loaded(trained: tuple[Path, Any]) -> None:
    path, model = trained
    loaded = pendulum(5)
    load_statistics(path, loaded)
    seen = np.random.default_rng(0).normal(size=(4, 3))
    own = model.get_vec_normalize_env()
    np.testing.assert_array_equal(loaded.normalize_obs(seen), own.normalize_obs(seen))
    assert np.abs(own.normalize_obs(seen) - seen).max() > 0.1, "something was normalised"
    assert (loaded.training, loaded.norm_reward, loaded.gamma) == (False, False, 0.9)
    assert PPO.load(path).num_timesteps == 64, "SB3 reads the file as ever"


def test_without_a_normalizer_the_file_is_sb3s(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", make_vec_env("Pendulum-v1"), n_steps=8, batch_size=8)
    (tmp_path / "model.zip").write_bytes(model_bytes(model))
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert "normalization.json" not in archive.namelist()
    with pytest.raises(ValueError, match=r"with the statistics of VecNormalize, got none"):
        load_statistics(tmp_path / "model.zip", pendulum())


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def moved(name: str, content: bytes) -> bytes:
    if name != "normalization.json":
        return content
    told = json.loads(content)
    told["observations"][""]["mean"][0] += 1.0
    return json.dumps(told).encode()


def other_weights(name: str, content: bytes) -> bytes:
    return content + b"\0" if name == "policy.pth" else content


def broken(name: str, content: bytes) -> bytes:
    return b'{"settings": 5}' if name == "normalization.json" else content


def no_json(name: str, content: bytes) -> bytes:
    return b"{" if name == "normalization.json" else content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_json, "line 1"),
        (moved, "statistics that were changed since"),
        (other_weights, "statistics of other weights"),
        (broken, "weights_sha256"),
    ],
)
def test_what_was_changed_since_is_refused(
    trained: tuple[Path, Any], tmp_path: Path, change: Any, message: str
) -> None:
    path = rewritten(trained[0], tmp_path / "model.zip", change)
    normalizer = pendulum()
    with pytest.raises(ValueError, match=rf"(?s){path}.* got: .*{message}.* as it was saved"):
        load_statistics(path, normalizer)
    assert normalizer.training


def test_statistics_of_other_observations_are_refused(trained: tuple[Path, Any]) -> None:
    other = VecNormalize(make_vec_env("MountainCarContinuous-v0"))
    with pytest.raises(ValueError, match=r"fit the environment, got: .*\(3,\).* instead of"):
        load_statistics(trained[0], other)


def test_the_vectors_of_a_dictionary_have_theirs(tmp_path: Path) -> None:
    def build() -> VecNormalize:
        venv = DummyVecEnv([lambda: StampedDictEnv(StampedEnv(lengths=(9, 15)))])
        return VecNormalize(venv, norm_obs_keys=["speed"])

    kwargs = {"features_extractor_kwargs": {"cnn_output_dim": 8}}
    model = PPO("MultiInputPolicy", build(), n_steps=16, batch_size=16, policy_kwargs=kwargs)
    (tmp_path / "model.zip").write_bytes(model_bytes(model.learn(16)))
    loaded = build()
    load_statistics(tmp_path / "model.zip", loaded)
    own = model.get_vec_normalize_env()
    assert own is not None
    assert isinstance(loaded.obs_rms, dict)
    assert isinstance(own.obs_rms, dict)
    assert loaded.obs_rms["speed"].count == own.obs_rms["speed"].count > 16
