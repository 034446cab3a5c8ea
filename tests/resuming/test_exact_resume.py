"""A training that was killed and restored is, to the last bit, one that was not."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from rl_infonce import InfoNCECallback, make_atari_vec_env
from rl_infonce.files.state_file import pack_state
from rl_infonce.resuming.model_state import get_run_state
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.resuming.run_logs import EpisodeLogCallback
from rl_infonce.runs.checkpoints import (
    latest_checkpoint,
)
from tests.files.test_state_file import assert_same
from tests.further import further, with_further
from tests.resuming.killing import (
    N_STEPS,
    KilledError,
    Killer,
    assert_goes_on_exactly,
    everything,
    learn,
    pendulum,
    scramble,
)
from tests.sb3.fakes import StampedEnv
from tests.sb3.worlds import (
    ALGORITHMS,
    RELATIVES,
    TRPO_BUILD,
    VECTOR_ALGORITHMS,
    extractors_of,
    policy_kwargs,
)

RESUMED = (
    *with_further(ALGORITHMS, {*RELATIVES, "SAC", "RecurrentPPO"}),
    *("PPO, decoupled", "PPO, scheduled", "PPO, atc", "PPO, minibatch"),
    *("DQN, minibatch", "DQN, now and then"),
    *map(further, ("TRPO, decoupled", "DQN, decoupled", "SAC, atc")),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_killed_and_restored_equals_uninterrupted(name: str, tmp_path: Path) -> None:
    algorithm, _, mode = name.partition(", ")
    settings: dict[str, Any] = {"preset": "atc"} if mode == "atc" else {}
    if mode == "minibatch":
        settings, mode = {"pairs_from": "minibatch"}, ""
    elif mode == "now and then":
        settings, mode = {"infonce_interval": 4}, ""

    def build() -> BaseAlgorithm:
        made = TRPO_BUILD if algorithm == "TRPO" else ALGORITHMS[algorithm]
        return made(policy_kwargs(**settings))

    last, n_steps = (180, 192) if isinstance(build(), OnPolicyAlgorithm) else (120, 132)
    kills = [last, 90] if name in ("PPO", "DQN") else [last]
    assert_goes_on_exactly(build, tmp_path, kills, n_steps, mode)


def test_updates_of_an_isolated_encoder_that_are_rare_go_on(tmp_path: Path) -> None:
    def build() -> BaseAlgorithm:
        return VECTOR_ALGORITHMS["DQN"](policy_kwargs(infonce_interval=7))

    assert_goes_on_exactly(build, tmp_path, [120], 132)


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
    episodes.close()
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


@pytest.mark.thorough
def test_processes_of_their_own_are_inexact(tmp_path: Path) -> None:
    env = SubprocVecEnv([lambda: StampedEnv(0)])
    model = PPO("CnnPolicy", env, n_steps=16, batch_size=16, policy_kwargs=policy_kwargs())
    with pytest.warns(UserWarning, match="exactly.*SubprocVecEnv"):
        model.learn(32, callback=ResumeCallback(tmp_path))
    env.close()
    state = get_run_state(model)
    assert pack_state(state)
