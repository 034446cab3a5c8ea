"""Checkpoints of a run: what stands in their way, and what they leave on the disk."""

import errno
import json
import os
import shutil
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import InfoNCECallback
from rl_infonce.files import durable
from rl_infonce.resuming.model_state import get_run_state
from rl_infonce.resuming.resume_callback import NotSavedError, ResumeCallback
from rl_infonce.resuming.run_logs import EpisodeLogCallback, run_logger
from rl_infonce.runs.checkpoints import (
    MANIFEST,
    checkpoints,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from tests.files.test_state_file import assert_same
from tests.resuming.killing import (
    N_STEPS,
    everything,
    learn,
    scramble,
)
from tests.sb3.fakes import StampedDictEnv, StampedEnv
from tests.sb3.worlds import ALGORITHMS, TRPO_BUILD, policy_kwargs


class OwnNoise(NormalActionNoise):
    """Of the user's, with a state that nobody knows."""


@pytest.mark.thorough
def test_what_cannot_be_read_is_named_once_and_begins_anew(tmp_path: Path) -> None:
    def build() -> SAC:
        env = DummyVecEnv([lambda: StampedDictEnv(StampedEnv(continuous=True))])
        noise = OwnNoise(np.zeros(2), np.ones(2))
        kwargs = {"net_arch": [8]}
        return SAC(
            "MultiInputPolicy",
            env,
            action_noise=noise,
            learning_starts=10,
            batch_size=8,
            buffer_size=40,
            policy_kwargs=kwargs,
        )

    model, run = build(), ResumeCallback(tmp_path, save_freq=20)
    with pytest.warns(UserWarning, match="cannot be resumed exactly") as caught:
        model.learn(90, callback=run)
    (warning,) = (each for each in caught if "exactly" in str(each.message))
    assert "got StampedDictEnv" in str(warning.message)
    assert "OwnNoise starts anew" in str(warning.message)
    rows = model.replay_buffer.observations["image"].copy()  # type: ignore[union-attr]
    again, run = build(), ResumeCallback(tmp_path, save_freq=20)
    assert run.restore(again)
    assert not run.is_exact
    assert np.array_equal(again.replay_buffer.observations["image"], rows)  # type: ignore[union-attr]
    learn(again, run, n=120)
    assert again.num_timesteps == 120


def test_a_full_disk_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs())

    def refuse(descriptor: int) -> None:
        if 100 < model.num_timesteps < 200:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_fsync", refuse)
    with pytest.warns(RuntimeWarning) as caught:
        model.learn(320, callback=ResumeCallback(tmp_path, save_freq=20, n_kept=9))
    messages = [str(each.message) for each in caught]
    assert "Step 128 has no checkpoint: " in messages[0]
    assert "No space left on device. The one before it is whole, training goes on" in messages[0]
    assert "the next try comes after 40 more steps" in messages[0]
    assert ["1 of 5)" in messages[0], "2 of 5)" in messages[1], len(messages)] == [True, True, 2]
    assert [read_checkpoint(path).step for path in checkpoints(tmp_path)] == [320, 256, 64]


def test_a_last_checkpoint_that_fails_ends_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path, save_freq=32)
    run._n_failures = 4

    def refuse(descriptor: int) -> None:
        if model.num_timesteps == 64:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_fsync", refuse)
    with pytest.warns(RuntimeWarning, match=r"Step 64 has .*None is .*; training has ended, and"):
        model.learn(64, callback=run)
    assert not checkpoints(tmp_path)


def test_steps_may_be_counted_anew(tmp_path: Path) -> None:
    run = ResumeCallback(tmp_path)
    model = ALGORITHMS["DQN"](policy_kwargs())
    for _ in range(2):
        model.learn(64, callback=run)
    restored = ALGORITHMS["DQN"](policy_kwargs())
    assert ResumeCallback(tmp_path).restore(restored)
    found, expected = (each.replay_buffer for each in (restored, model))  # type: ignore[attr-defined]
    assert found.pos == expected.pos > 64 // model.n_envs
    rows = slice(0, expected.pos)
    np.testing.assert_array_equal(found.observations[rows], expected.observations[rows])


def test_a_disk_that_stays_full_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = ALGORITHMS["DQN"](policy_kwargs()), ResumeCallback(tmp_path / "dqn", save_freq=4)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_fsync", refuse)
    with (
        pytest.warns(RuntimeWarning) as caught,
        pytest.raises(
            NotSavedError, match=r"Step 20 .*No space.* None .*; 5 tries in a row failed"
        ),
    ):
        model.learn(100, callback=run)
    assert "(failure 4 of 5)" in str(caught[-1].message)
    assert model.num_timesteps == 20
    assert not list((tmp_path / "dqn").glob(f"*{durable.PARTIAL}"))


def test_the_disk_has_the_tables_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: dict[int, int] = {}  # file to bytes
    fsync, n_checked = durable._fsync, 0

    def note(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        on_disk[found.st_ino] = found.st_size

    def write(*given: Any, **settings: Any) -> Path:
        nonlocal n_checked
        n_checked += 1
        for name in ("episodes.csv", "progress.csv"):
            found = (tmp_path / name).stat()
            assert on_disk.get(found.st_ino) == found.st_size > 0, (name, n_checked)
        return write_checkpoint(*given, **settings)

    monkeypatch.setattr(durable, "_fsync", note)
    monkeypatch.setattr("rl_infonce.resuming.resume_callback.write_checkpoint", write)
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1"), n_steps=64, batch_size=64, n_epochs=1)
    model.set_logger(
        run_logger(tmp_path, tmp_path / "tb", first_step=0, goes_on=False, on_screen=False)
    )
    episodes = EpisodeLogCallback(tmp_path / "episodes.csv")
    episodes.open(0)
    model.learn(256, callback=[episodes, ResumeCallback(tmp_path / "run", save_freq=64)])
    episodes.close()
    model.logger.close()
    assert n_checked == 4, "three times before a rollout and once at the end"
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) > 4


def test_asked_to_stop_it_saves_after_the_update_and_goes_on(tmp_path: Path) -> None:
    whole = ALGORITHMS["PPO"](policy_kwargs())
    learn(whole, ResumeCallback(tmp_path / "whole"), n=N_STEPS)
    expected = everything(whole)

    class AskAt(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 100:
                run.ask_to_stop()
            return True

    run = ResumeCallback(tmp_path / "run")
    model = ALGORITHMS["PPO"](policy_kwargs())
    learn(model, run, AskAt(), n=N_STEPS)
    assert latest_checkpoint(tmp_path / "run").step == 128
    assert model.num_timesteps == 130, "one step was taken to leave"
    again, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path / "run")
    assert run.restore(again)
    learn(again, run, n=N_STEPS)
    assert_same(everything(again), expected)


def test_a_run_with_nothing_left_keeps_its_checkpoint(tmp_path: Path) -> None:
    whole = ALGORITHMS["PPO"](policy_kwargs())
    learn(whole, ResumeCallback(tmp_path / "whole"), n=N_STEPS)
    for budget in (128, 128, 100, N_STEPS):  # a job that is queued again after it was done
        scramble()
        model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path / "run")
        run.restore(model)
        learn(model, run, n=budget)
    assert run.is_exact
    assert_same(everything(model), everything(whole))


def test_rows_that_are_damaged_are_written_anew(tmp_path: Path) -> None:
    build = ALGORITHMS["DQN"]
    learn(build(policy_kwargs()), ResumeCallback(tmp_path, save_freq=30), n=120)
    newest, former = checkpoints(tmp_path)
    names = [set(_shared(path)) for path in (newest, former)]
    damaged = tmp_path / min(names[0] - names[1])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    model, run = build(policy_kwargs()), ResumeCallback(tmp_path, save_freq=30)
    assert run.restore(model, fall_back=True)
    learn(model, run, n=120)
    assert latest_checkpoint(tmp_path).path == newest


def _shared(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / MANIFEST).read_text())["shared"]
    return found


def test_a_checkpoint_that_was_being_replaced_is_there(finished: Path) -> None:
    newest = checkpoints(finished)[0]
    newest.rename(
        newest.with_name(f"{newest.name}.former.4711{durable.PARTIAL}")
    )  # killed, and then
    shutil.copytree(
        checkpoints(finished)[0], newest.with_name(f"{newest.name}.4711{durable.PARTIAL}")
    )
    model = ALGORITHMS["PPO"](policy_kwargs())
    assert ResumeCallback(finished).restore(model)
    assert model.num_timesteps == int(newest.name.removeprefix("step_"))
    assert not list(finished.glob(f"*{durable.PARTIAL}"))


def test_weights_that_are_not_finite_are_not_saved(finished: Path) -> None:
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(finished)
    run.restore(model)

    class Poison(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_training_end(self) -> None:
            self.model.policy.state_dict()["value_net.bias"].fill_(torch.nan)

    with pytest.raises(
        FloatingPointError, match=r"at step 256, .* in value_net.*The last checkpoint"
    ):
        learn(model, run, Poison(), n=256)
    assert latest_checkpoint(finished).step == 192


def test_a_mask_of_minus_infinity_is_saved_and_a_nan_is_not(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs())
    model.policy.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    learn(model, ResumeCallback(tmp_path / "run", save_freq=40), n=64)
    assert latest_checkpoint(tmp_path / "run").step == 64
    model.policy.get_buffer("mask").fill_(torch.nan)
    with pytest.raises(FloatingPointError, match=r"infinity in mask\. Train anew with a lower"):
        learn(model, ResumeCallback(tmp_path / "none", save_freq=40), n=128)


class Outcome(IntEnum):
    """How an episode of the user's ends."""

    WON = 1


class TellMore(BaseCallback):
    """What a user's wrapper may say about episodes."""

    def _on_rollout_start(self) -> None:
        infos, successes = self.model.ep_info_buffer, self.model.ep_success_buffer
        assert infos is not None
        assert successes is not None
        told = {"seed": 3, "task": np.str_("reach"), "file": Path("level"), "outcome": Outcome.WON}
        infos.append({"r": 1.5, "l": 9, "t": 0.1, **told})
        infos.append({"r": Outcome.WON, "l": 9})
        successes.extend([True, Outcome.WON])

    def _on_step(self) -> bool:
        return True


def test_what_is_told_of_episodes_stands_in_no_checkpoints_way(tmp_path: Path) -> None:
    model, again = (PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32) for _ in range(2))
    learn(model, ResumeCallback(tmp_path, save_freq=32), TellMore(), n=64)
    assert ResumeCallback(tmp_path).restore(again)
    assert again.ep_info_buffer is not None
    expected = {"r": 1.5, "l": 9, "t": 0.1, "seed": 3}
    assert [each for each in again.ep_info_buffer if "seed" in each] == 2 * [expected]
    assert again.ep_info_buffer.maxlen == 100
    assert_same(list(again.ep_success_buffer or ()), [True, True])
    model.logger.record("task", np.str_("reach"))
    model.logger.record("score", np.float32(2))
    pending = get_run_state(model)["logger"]["name_to_value"]
    assert pending["score"] == 2
    assert "task" not in pending


def test_sb3s_own_file_lies_beside_the_state(finished: Path) -> None:
    loaded = PPO.load(latest_checkpoint(finished).path / "model.zip")
    model = ALGORITHMS["PPO"](policy_kwargs())
    ResumeCallback(finished).restore(model)
    assert_same(loaded.policy.state_dict(), model.policy.state_dict())


def test_decoupled_updates_must_be_done_before_saving(tmp_path: Path) -> None:
    model = TRPO_BUILD(policy_kwargs())
    run, decoupled = ResumeCallback(tmp_path), InfoNCECallback(decoupled=True)
    with pytest.raises(ValueError, match=r"before ResumeCallback, got it after.*Change"):
        model.learn(192, callback=[run, decoupled])
    assert model.num_timesteps == 0
    decoupled._recorded = {0: None}  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match="to come before the callback that saves the run"):
        decoupled.get_state()


@pytest.mark.parametrize("inexact", [False, True])
def test_a_restored_run_does_not_count_its_steps_anew(tmp_path: Path, inexact: bool) -> None:
    model = ALGORITHMS["DQN"](policy_kwargs())
    model.learn(64, callback=ResumeCallback(tmp_path))
    again = ALGORITHMS["DQN"](policy_kwargs(), gamma=0.9 if inexact else 0.99)
    run = ResumeCallback(tmp_path)
    assert run.restore(again, inexact=inexact)
    with pytest.raises(ValueError, match=r"at the restored step 64, got 0: .*reset_num_timesteps="):
        again.learn(64, callback=run)
    assert [read_checkpoint(path).step for path in checkpoints(tmp_path)] == [64]
