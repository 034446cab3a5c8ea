"""A training that was killed and restored is, to the last bit, one that was not."""

import errno
import json
import os
import random
import shutil
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from rl_infonce import InfoNCECallback, make_atari_vec_env
from rl_infonce.files import durable
from rl_infonce.files.state_file import pack_state
from rl_infonce.resuming.model_state import get_run_state
from rl_infonce.resuming.resume_callback import NotSavedError, ResumeCallback
from rl_infonce.resuming.run_logs import EpisodeLogCallback, run_logger
from rl_infonce.runs.checkpoints import (
    MANIFEST,
    DamagedCheckpointError,
    checkpoints,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from tests.files.test_state_file import assert_same
from tests.further import further, with_further
from tests.sb3.fakes import StampedDictEnv, StampedEnv
from tests.sb3.worlds import ALGORITHMS, RELATIVES, TRPO_BUILD, extractors_of, policy_kwargs

N_STEPS = 192


class KilledError(BaseException):
    """Nothing catches it, as nothing catches a SIGKILL."""


class Killer(BaseCallback):
    """Ends the process at a step; it is gone when the run goes on."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise KilledError
        return True


class Snapshot(BaseCallback):
    """Copies the folder at a step: what a SIGKILL then would leave on the disk."""

    def __init__(self, source: Path, target: Path, step: int) -> None:
        super().__init__()
        self.source, self.target, self.step = source, target, step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step and not self.target.exists():
            shutil.copytree(self.source, self.target)
        return True


def scramble() -> None:
    """Leave the process's random streams where a new process would have them: elsewhere."""
    random.seed()
    np.random.seed()  # noqa: NPY002
    torch.seed()


def learn(model: BaseAlgorithm, run: ResumeCallback, *others: BaseCallback, n: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn(n - model.num_timesteps, callback=[*others, run], reset_num_timesteps=False)


def everything(model: BaseAlgorithm) -> dict[str, Any]:
    """Return a copy of all that the next step depends on, but for what is of the time of day."""
    state = get_run_state(model)
    buffer = getattr(model, "replay_buffer", None)
    arrays = {} if buffer is None else vars(buffer)
    state["replay"] = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)}
    del state["counters"]["_num_timesteps_at_start"], state["logger"], state["callbacks"]
    return dict(timeless_copy(state))


def timeless_copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: timeless_copy(v) for k, v in tree.items() if k not in ("t", "episode_times")}
    if isinstance(tree, list | tuple | deque):
        return [timeless_copy(each) for each in tree]
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def others(mode: str) -> list[BaseCallback]:
    if mode == "scheduled":
        return [InfoNCECallback("lin_0.1", decoupled=True, n_updates=2)]
    return [InfoNCECallback(decoupled=True, n_updates=2)] if mode == "decoupled" else []


RESUMED = (
    *with_further(ALGORITHMS, {*RELATIVES, "SAC", "RecurrentPPO"}),
    *("PPO, decoupled", "PPO, scheduled", "PPO, atc"),
    *map(further, ("TRPO, decoupled", "DQN, decoupled", "SAC, atc")),
)


def assert_goes_on_exactly(
    build: Callable[[], BaseAlgorithm],
    folder: Path,
    kills: Sequence[int],
    n_steps: int,
    mode: str = "",
) -> None:
    """Assert that trainings which were killed at these steps end as the one that was not."""
    whole, run = build(), ResumeCallback(folder / "whole", save_freq=30)
    killed = {at: Snapshot(folder / "whole", folder / str(at), at) for at in kills}
    learn(whole, run, *others(mode), *killed.values(), n=n_steps)
    expected = everything(whole)
    for killed_at, snapshot in killed.items():
        scramble()
        again, run = build(), ResumeCallback(snapshot.target, save_freq=30)
        assert run.restore(again)
        assert 0 < killed_at - again.num_timesteps <= 60
        learn(again, run, *others(mode), n=n_steps)
        assert run.is_exact
        assert_same(everything(again), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_killed_and_restored_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    algorithm, _, mode = name.partition(", ")
    settings: dict[str, Any] = {"preset": "atc"} if mode == "atc" else {}

    def build() -> BaseAlgorithm:
        made = TRPO_BUILD if algorithm == "TRPO" else ALGORITHMS[algorithm]
        return made(policy_kwargs(**settings))

    last, n_steps = (180, 192) if isinstance(build(), OnPolicyAlgorithm) else (120, 132)
    kills = [last, 90] if name in ("PPO", "DQN") else [last]
    assert_goes_on_exactly(build, tmp_path, kills, n_steps, mode)


def pendulum(n_envs: int = 2) -> Any:
    return VecNormalize(make_vec_env("Pendulum-v1", n_envs, seed=3))


def sde_ppo() -> PPO:
    return PPO("MlpPolicy", pendulum(), n_steps=32, batch_size=32, use_sde=True, seed=1)


def sde_sac() -> SAC:
    return SAC("MlpPolicy", pendulum(1), use_sde=True, learning_starts=50, batch_size=16, seed=1)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("build", [sde_ppo, sde_sac])
def test_normalizers_and_state_dependent_noise_go_on(build: Any, tmp_path: Path) -> None:
    assert_goes_on_exactly(build, tmp_path, [150], N_STEPS)


def test_n_step_returns_go_on(tmp_path: Path) -> None:
    def build() -> BaseAlgorithm:
        return ALGORITHMS["DQN"](policy_kwargs(), n_steps=3)

    assert_goes_on_exactly(build, tmp_path, [120], 132)


class OwnBuffer(ReplayBuffer):
    """Of a class whose rows nobody knows how to save."""


@pytest.mark.thorough
def test_a_buffer_that_was_not_saved_fills_before_updates_go_on(tmp_path: Path) -> None:
    def build() -> tuple[BaseAlgorithm, ResumeCallback]:
        model = ALGORITHMS["DQN"](policy_kwargs(), replay_buffer_class=OwnBuffer)
        return model, ResumeCallback(tmp_path, save_freq=30)

    learn(*build(), n=120)
    for step in (120, 220):  # a second time, too: what was put off is no other setting
        model, run = build()
        with pytest.warns(UserWarning, match=rf"OwnBuffer were not saved.* step {step + 60},"):
            assert run.restore(model)
        n_updates = model._n_updates
        learn(model, run, n=step + 60)
        assert model._n_updates == n_updates
        learn(model, run, n=step + 100)
        assert model._n_updates > n_updates


def test_an_evaluation_of_normalized_games_may_still_be_to_come(tmp_path: Path) -> None:
    def parts() -> tuple[PPO, EvalCallback, ResumeCallback]:
        model = PPO("MlpPolicy", pendulum(), n_steps=32, batch_size=32, seed=1)
        return model, EvalCallback(pendulum(1), eval_freq=10_000), ResumeCallback(tmp_path, 30)

    model, evaluate, run = parts()
    learn(model, run, evaluate, n=128)
    again, evaluate, run = parts()
    assert run.restore(again)
    learn(again, run, evaluate, n=192)


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_a_progress_bar_hides_no_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(EpisodeLogCallback, "sync", lambda self: synced.append(self))
    episodes = EpisodeLogCallback(tmp_path / "episodes.csv")
    episodes.open(0)
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path / "run", save_freq=30)
    model.learn(64, callback=[episodes, run], progress_bar=True)
    assert synced == [episodes]
    later = InfoNCECallback(decoupled=True)
    with pytest.raises(ValueError, match=r"InfoNCECallback\(decoupled=True\) before"):
        model.learn(64, callback=[run, later], progress_bar=True)


@pytest.mark.thorough
def test_killed_again_and_again(tmp_path: Path) -> None:
    whole = ALGORITHMS["DQN"](policy_kwargs())
    learn(whole, ResumeCallback(tmp_path / "whole", save_freq=30), n=N_STEPS)
    expected = everything(whole)
    rng = np.random.default_rng(0)
    n_kills = 0
    while True:
        scramble()
        model = ALGORITHMS["DQN"](policy_kwargs())
        run = ResumeCallback(tmp_path / "run", save_freq=30)
        run.restore(model)
        try:
            learn(model, run, Killer(model.num_timesteps + int(rng.integers(1, 70))), n=N_STEPS)
        except KilledError:
            n_kills += 1
        else:
            break
    assert n_kills > 3
    assert_same(everything(model), expected)


class Nothing(BaseCallback):
    """A callback that was not there before."""

    def _on_step(self) -> bool:
        return True


def test_callbacks_and_the_logger_go_on(tmp_path: Path) -> None:
    def parts() -> tuple[PPO, EvalCallback, ResumeCallback]:
        model = PPO("MlpPolicy", pendulum(), n_steps=32, batch_size=32, seed=1)
        evaluate = EvalCallback(pendulum(1), eval_freq=40, n_eval_episodes=1, verbose=0)
        return model, evaluate, ResumeCallback(tmp_path / "run", save_freq=60)

    model, evaluate, run = parts()
    learn(model, run, evaluate, n=512)
    model, other, run = parts()
    run.folder = tmp_path / "killed"
    with pytest.raises(KilledError):
        learn(model, run, other, Killer(250), n=512)
    assert latest_checkpoint(run.folder).step == 128
    model, other, run = parts()
    run.folder = tmp_path / "killed"
    assert run.restore(model)
    pending: dict[str, Any] = {}

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            pending.setdefault("first", dict(self.logger.name_to_value))
            return True

    learn(model, run, Nothing(), other, Look(), n=512)
    for name in ("best_mean_reward", "n_calls", "evaluations_timesteps", "evaluations_results"):
        assert getattr(other, name) == getattr(evaluate, name)
    assert "train/loss" in pending["first"], "of the update before the checkpoint"


@pytest.mark.atari
def test_an_evaluation_that_is_still_to_come_does_not_stand_in_the_way(tmp_path: Path) -> None:
    evaluate = EvalCallback(make_atari_vec_env("pong", 1, seed=0), eval_freq=10_000, verbose=0)
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path, save_freq=20)
    with pytest.raises(KilledError):
        learn(model, run, evaluate, Killer(150), n=N_STEPS)
    again, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(tmp_path, save_freq=20)
    assert run.restore(again)
    evaluate = EvalCallback(make_atari_vec_env("pong", 1, seed=5), eval_freq=10_000, verbose=0)
    learn(again, run, evaluate, n=N_STEPS)
    assert evaluate.eval_env.get_state()["seeds"] == [0]  # type: ignore[attr-defined]


def test_without_a_checkpoint_nothing_is_restored(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](policy_kwargs())
    before = everything(model)
    assert not ResumeCallback(tmp_path).restore(model)
    assert_same(everything(model), before)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once") / "run"
    learn(ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(folder, save_freq=40), n=N_STEPS)
    return folder


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """The folder of a run of 192 steps."""
    return Path(shutil.copytree(once, tmp_path / "finished"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "A2C"}, r"algorithm is 'A2C' \(was 'PPO'\)"),
        ({"n_epochs": 5}, r"n_epochs is 5 \(was 2\)"),
        (
            {"gamma": 0.5, "ent_coef": 0.1},
            r"ent_coef is 0.1 \(was 0.0\); gamma is 0.5 \(was 0.99\)",
        ),
        ({"clip_range": 0.1}, r"clip_range.value_schedule.val is 0.1 \(was 0.2\)"),
        (
            {"learning_rate": LinearSchedule(3e-4, 0.0, 1.0)},
            r"learning_rate is None \(was 0.0003\); learning_rate.end is 0.0 \(was None\)",
        ),
        (
            {"kwargs": policy_kwargs(positives="shuffled", n_pairs=8)},
            r"policy_kwargs.features_extractor_kwargs.n_pairs is 8 \(was 16\); "
            r"policy_kwargs.features_extractor_kwargs.positives is 'shuffled' \(was None\)",
        ),
        (
            {"kwargs": {**policy_kwargs(), "activation_fn": torch.nn.ReLU, "net_arch": [8]}},
            r"activation_fn is 'ReLU' \(was None\); policy_kwargs.net_arch.0 is 8 \(was None\); "
            r"policy_kwargs.net_arch.length is 1 \(was 0\)",
        ),
    ],
)
def test_other_settings_are_listed(change: dict[str, Any], message: str, finished: Path) -> None:
    build = ALGORITHMS[change.get("algorithm", "PPO")]
    own = {name: value for name, value in change.items() if name != "algorithm"}
    model = build(**{"kwargs": policy_kwargs(), **own})
    with pytest.raises(ValueError, match=message):
        ResumeCallback(finished).restore(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"gamma": 0.5}, "gamma is 0.5"), ({"clip_range": 0.1}, "clip_range")],
)
def test_other_settings_are_possible_on_request(
    change: dict[str, Any], message: str, finished: Path
) -> None:
    model, run = ALGORITHMS["PPO"](policy_kwargs(), **change), ResumeCallback(finished)
    before = everything(model)
    with pytest.raises(ValueError, match=message):
        run.restore(model)
    assert_same(everything(model), before)
    assert run.restore(model, inexact=True)
    assert model.num_timesteps == 192
    assert not run.is_exact
    learn(model, run, n=256)
    assert latest_checkpoint(finished).about["is_exact"] is False


def test_other_versions_are_listed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    software = {"versions": {"torch": "1.0"}, "git_commit": None}
    monkeypatch.setattr("rl_infonce.resuming.resume_callback.software", lambda: software)
    with pytest.raises(ValueError, match=r"torch is 1\.0 \(was 2"):
        ResumeCallback(finished).restore(ALGORITHMS["PPO"](policy_kwargs()))


def test_another_number_of_gpus_is_listed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_infonce.resuming.model_state.n_gpus", lambda: 16)
    monkeypatch.setattr("rl_infonce.runs.random_streams.n_gpus", lambda: 16)
    model, run = ALGORITHMS["PPO"](policy_kwargs()), ResumeCallback(finished)
    with pytest.raises(ValueError, match=r"number of GPUs is 16 \(was \d\)"):
        run.restore(model)
    assert run.restore(model, inexact=True)
    learn(model, run, n=model.num_timesteps + 1)


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """A game of the user's, whose state cannot be read."""


def test_episodes_end_where_games_could_not_go_on(tmp_path: Path) -> None:
    def build() -> tuple[DQN, ResumeCallback]:
        env = DummyVecEnv([lambda: Opaque(StampedEnv(lengths=(100, 100)))])
        sizes: dict[str, Any] = {"buffer_size": 200, "learning_starts": 10, "batch_size": 8}
        model = DQN("CnnPolicy", env, policy_kwargs=policy_kwargs(), **sizes)
        return model, ResumeCallback(tmp_path, save_freq=20)

    learn(*build(), n=40)
    model, run = build()
    assert run.restore(model)
    learn(model, run, n=80)
    (extractor,) = extractors_of(model)
    experience = extractor.experience()
    assert experience is not None
    episodes = experience.episodes(np.arange(80), np.zeros(80, int))
    # and after the next row, as a `learn` that was stopped may have swallowed a step
    assert np.flatnonzero(np.diff(episodes)).tolist() == [39, 40]


def test_what_cannot_be_read_is_named_once_and_begins_anew(tmp_path: Path) -> None:
    def build() -> SAC:
        env = DummyVecEnv([lambda: StampedDictEnv(StampedEnv(continuous=True))])
        noise = NormalActionNoise(np.zeros(2), np.ones(2))
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
    assert "NormalActionNoise starts anew" in str(warning.message)
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
        pytest.raises(NotSavedError, match=r"Step 20 .*No space.* whole; 5 tries in a row failed"),
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
    model.learn(256, callback=[episodes, ResumeCallback(tmp_path / "run", save_freq=64)])
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


def test_a_damaged_checkpoint_is_named_or_passed_over(finished: Path) -> None:
    newest, former = checkpoints(finished)
    content = bytearray((newest / "state.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "state.safetensors").write_bytes(content)
    model = ALGORITHMS["PPO"](policy_kwargs())
    with pytest.raises(DamagedCheckpointError, match=r"state\.safetensors with SHA-256"):
        ResumeCallback(finished).restore(model)
    assert ResumeCallback(finished).restore(model, fall_back=True)
    assert model.num_timesteps == int(former.name.removeprefix("step_"))


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

    with pytest.raises(FloatingPointError, match=r"at step 256, got NaN or infinity in value_net"):
        learn(model, run, Poison(), n=256)
    assert latest_checkpoint(finished).step == 192


def test_sb3s_own_file_lies_beside_the_state(finished: Path, tmp_path: Path) -> None:
    loaded = PPO.load(latest_checkpoint(finished).path / "model.zip")
    model = ALGORITHMS["PPO"](policy_kwargs())
    ResumeCallback(finished).restore(model)
    assert_same(loaded.policy.state_dict(), model.policy.state_dict())
    without = ResumeCallback(tmp_path / "without", save_zip=False)
    learn(ALGORITHMS["PPO"](policy_kwargs()), without, n=64)
    assert checkpoints(without.folder)
    assert not list(without.folder.rglob("model.zip"))


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


@pytest.mark.parametrize(
    ("given", "error"),
    [({"save_freq": 0}, ValueError), ({"n_kept": 0}, ValueError), ({"save_zip": 1}, TypeError)],
)
def test_bad_arguments_are_named(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(given))):
        ResumeCallback("runs", **given)


def test_processes_of_their_own_are_inexact(tmp_path: Path) -> None:
    env = SubprocVecEnv([lambda: StampedEnv(0)])
    model = PPO("CnnPolicy", env, n_steps=16, batch_size=16, policy_kwargs=policy_kwargs())
    with pytest.warns(UserWarning, match="exactly.*SubprocVecEnv"):
        model.learn(32, callback=ResumeCallback(tmp_path))
    env.close()
    state = get_run_state(model)
    assert pack_state(state)
