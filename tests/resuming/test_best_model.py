"""The model whose episodes returned most stays, whatever comes after it."""

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.resuming.best_model import BestModel, find_best, keep_best, mean_return
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.runs.checkpoints import checkpoints


def cart_pole(window: int = 2) -> PPO:
    return PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, stats_window_size=window)


def played(model: BaseAlgorithm, returns: Sequence[float], window: int = 2) -> BaseAlgorithm:
    model.ep_info_buffer = deque(({"r": r, "l": 1, "t": 0.0} for r in returns), maxlen=window)
    return model


@pytest.mark.parametrize(
    ("returns", "expected"),
    [([], None), ([5], None), ([5, 8], 6.5), ([5, 8, 2], 5.0), ([1, float("inf")], None)],
)
def test_a_mean_counts_when_the_window_is_full(
    returns: list[float], expected: float | None
) -> None:
    model = cart_pole()
    model.ep_info_buffer = None
    assert mean_return(model) is None, "before training"
    assert mean_return(played(model, returns)) == expected


def test_only_the_best_is_kept(tmp_path: Path) -> None:
    model = cart_pole()
    saved = []
    for step, returns in [(8, [1, 1]), (16, [3, 3]), (24, [2, 2]), (32, [3, 3]), (4, [9, 9])]:
        model.num_timesteps = step
        is_best = keep_best(tmp_path, played(model, returns), lambda step=step: b"%d" % step)  # type: ignore[misc]
        saved.append(is_best)
        assert len(checkpoints(tmp_path / "best")) == 1
    assert saved == [True, True, False, False, True], "4 comes later than 32 in a run taken back"
    best = find_best(tmp_path)
    assert best == BestModel(checkpoints(tmp_path / "best")[0] / "model.zip", 4, 9.0)
    assert best.path.read_bytes() == b"4"


def test_a_damaged_best_is_none(tmp_path: Path) -> None:
    assert find_best(tmp_path) is None
    model = played(cart_pole(), [1, 1])
    keep_best(tmp_path, model, lambda: b"zip")
    (checkpoints(tmp_path / "best")[0] / "model.zip").write_bytes(b"zap")
    assert find_best(tmp_path) is None
    model.num_timesteps = 8
    assert keep_best(tmp_path, model, lambda: b"zip")
    assert find_best(tmp_path) is not None


class Luck(BaseCallback):
    """Lets episodes return what the test says, by the step at which they are looked at."""

    def __init__(self, returns: dict[int, float]) -> None:
        super().__init__()
        self.returns = returns

    def _on_rollout_start(self) -> None:
        if self.num_timesteps in self.returns:
            played(self.model, [self.returns[self.num_timesteps]] * 2)

    def _on_step(self) -> bool:
        return True


def test_it_outlives_the_checkpoints_after_it_and_is_loaded_by_sb3(tmp_path: Path) -> None:
    weights: dict[int, torch.Tensor] = {}

    class Note(Luck):
        def _on_rollout_start(self) -> None:
            super()._on_rollout_start()
            weights[self.num_timesteps] = self.model.policy.state_dict()["value_net.weight"].clone()

    luck = Note({64: 7.0, 96: 600.0, 128: 5.0, 160: 4.0, 192: 3.0, 224: 2.0})
    run = ResumeCallback(tmp_path, save_freq=32)
    cart_pole().learn(256, callback=[luck, run])
    assert [int(path.name[5:]) for path in checkpoints(tmp_path)] == [256, 224]
    best = run.best
    assert best is not None
    assert (best.step, best.mean_return) == (96, 600.0)
    assert torch.equal(PPO.load(best.path).policy.state_dict()["value_net.weight"], weights[96])
    again, run = cart_pole(), ResumeCallback(tmp_path, save_freq=32)
    assert run.restore(again)
    again.learn(64, callback=[Luck({288: 601.0}), run], reset_num_timesteps=False)
    assert run.best is not None
    assert run.best.step == 288


def test_the_run_goes_on_without_it(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=64, stats_window_size=2, seed=0)
    run = ResumeCallback(tmp_path, save_freq=16)
    model.learn(200, callback=run)
    assert run.best is not None
    assert run.restore(DQN("MlpPolicy", "CartPole-v1", buffer_size=64, stats_window_size=2, seed=0))
    shutil.rmtree(run.best.path.parents[1])
    assert run.restore(DQN("MlpPolicy", "CartPole-v1", buffer_size=64, stats_window_size=2, seed=0))
