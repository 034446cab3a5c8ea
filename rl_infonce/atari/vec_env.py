"""Make ale_py's native vector environment a Stable-Baselines3 `VecEnv`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices

from rl_infonce.atari.emulator import N_SEEDS, checked_actions
from rl_infonce.atari.episode_counters import EpisodeCounters
from rl_infonce.checks import differences

StepReturn = tuple[
    npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]
]


class _Segment(NamedTuple):
    """Seeds [N] of a reset, -1 for games that kept their random numbers, and the actions since."""

    seeds: npt.NDArray[np.int64]
    actions: bytearray


class AtariVecEnv(VecEnv):
    """An `AtariVectorEnv` of ale_py that speaks SB3's `VecEnv` protocol.

    `make_atari_vec_env` makes it. Observations are uint8 [N, frame_stack, 84, 84], rewards float32
    [N]. Every returned array is fresh: later steps never write into it.

    The environment records seeds and actions, a byte per step, so that `get_state` can return its
    state and `set_state` can restore it by playing again: ale_py exposes no state of its native
    games.

    `infos[i]` always holds "lives" (those left after the step; at the end of a game, those of the
    game that ended) and "TimeLimit.truncated". When `dones[i]`, it holds "terminal_observation". At
    the end of a whole game, and only there, it holds "episode": the raw return "r", the length "l"
    in agent steps, and the seconds "t" since the environment was made. As `env_is_wrapped(Monitor)`
    returns True, `evaluate_policy` takes its returns from there. (SB3's `make_atari_env` counts "l"
    in emulator frames.)

    With `terminal_on_life_loss`, a lost life sets `dones[i]` while the game goes on, so that states
    of later lives are seen; a counter that falls to 0 before the game is over does not. Unlike in
    SB3's `EpisodicLifeEnv`, no no-op step follows a lost life, the frame stack keeps images of the
    life before, and FIRE is pressed for the agent only at the start of a game.
    """

    def __init__(
        self, emulator: AtariVectorEnv, settings: Mapping[str, Any], *, seed: int | None
    ) -> None:
        n_envs, game = int(emulator.num_envs), str(settings["game"])
        image_space, action_space = emulator.single_observation_space, emulator.single_action_space
        self._fixed = {
            "render_mode": None,
            "game": game,
            "observation_space": image_space,
            "action_space": action_space,
        }
        super().__init__(n_envs, image_space, action_space)
        self.game = game
        self.n_actions = len(emulator.ale.get_action_set())
        self._emulator: AtariVectorEnv | None = emulator
        self._settings = dict(settings)
        self._clip_reward = bool(settings["clip_reward"])
        self._history: list[_Segment] = []
        self._step_is_pending = False
        self._counters = EpisodeCounters(n_envs)
        if seed is not None:
            self.seed(seed)

    def reset(self) -> npt.NDArray[np.uint8]:
        """Start all games anew and return the first observations [N, stack, 84, 84].

        It uses the seeds that the constructor or `seed` got, once.

        Raises:
            RuntimeError: If the environment is closed.
        """
        emulator = self._open_emulator()
        self._drop_pending_step(emulator)
        given = [-1 if seed is None else int(seed) % N_SEEDS for seed in self._seeds]
        seeds = np.array(given, np.int64)
        if not self._history:  # a recorded history begins with known seeds
            fresh = [secrets.randbelow(N_SEEDS) for _ in range(self.num_envs)]
            seeds = np.where(seeds < 0, fresh, seeds)
        observations = self._reset_emulator(emulator, seeds)
        self._reset_seeds()
        self._reset_options()
        return observations

    def _drop_pending_step(self, emulator: AtariVectorEnv) -> None:
        """Drop the result of a step that was sent, or a later step would return it."""
        if self._step_is_pending:
            self._step_is_pending = False
            emulator.recv()

    def _reset_emulator(
        self, emulator: AtariVectorEnv, seeds: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Start new games; those with seed -1 continue with their random numbers."""
        observations, info = emulator.reset(seed=seeds)
        if (seeds >= 0).all():  # the history before does not matter any more
            self._history.clear()
        self._history.append(_Segment(seeds, bytearray()))
        self._counters.reset(info)
        self.reset_infos = [{"lives": int(lives)} for lives in info["lives"]]
        return np.asarray(observations, np.uint8)

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Send one action [N] to each game; `step_wait` collects the results.

        Raises:
            RuntimeError: If the environment is closed, was never reset, or already steps.
            TypeError: If the actions are not integers.
            ValueError: If there is not one action in 0..n_actions-1 per game.
        """
        emulator = self._open_emulator()
        if not self._history:
            raise RuntimeError("Expected `reset()` before the first step.")
        if self._step_is_pending:
            raise RuntimeError("Expected `step_wait()` before the next `step_async()`.")
        checked = checked_actions("`actions`", actions, self.num_envs, self.n_actions)
        emulator.send(checked)
        self._history[-1].actions.extend(checked.astype(np.uint8).tobytes())
        self._step_is_pending = True

    def step_wait(self) -> StepReturn:
        """Return observations [N, stack, 84, 84], rewards [N], dones [N] and one info per game.

        Raises:
            RuntimeError: If the environment is closed or no step was sent.
        """
        emulator = self._open_emulator()
        if not self._step_is_pending:
            raise RuntimeError("Expected `step_async()` before `step_wait()`.")
        self._step_is_pending = False
        observations, rewards, terminated, truncated, info = emulator.recv()
        restarted, infos = self._counters.step(rewards, terminated, truncated, info)
        for i in np.flatnonzero(restarted):
            self.reset_infos[i] = {"lives": int(info["lives"][i])}
        dones = terminated | truncated
        for i in np.flatnonzero(dones):
            last = info["final_obs"] if restarted[i] else observations
            infos[i]["terminal_observation"] = last[i].copy()
        seen = np.sign(rewards) if self._clip_reward else rewards
        return np.asarray(observations, np.uint8), seen.astype(np.float32), dones, infos

    def get_state(self) -> dict[str, Any]:
        """Return the state for `set_state`: settings, seeds, actions and counters.

        Raises:
            RuntimeError: If the environment waits for `step_wait`.
        """
        if self._step_is_pending:
            raise RuntimeError("Expected `step_wait()` before `get_state()`.")
        return {
            "settings": dict(self._settings),
            "seeds": list(self._seeds),
            "history": [
                {
                    "seeds": each.seeds.copy(),
                    "actions": np.array(each.actions, np.uint8).reshape(-1, self.num_envs),
                }
                for each in self._history
            ],
            "counters": self._counters.state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> npt.NDArray[np.uint8] | None:
        """Restore a state and return its observations [N, stack, 84, 84].

        The observations are None if the state is from before the first `reset()`.

        The games are played again from their seeds, which takes as long as the same steps without
        a policy. Elapsed seconds ("t") start anew. A step that was sent is dropped.

        Args:
            state: State of an environment with the same settings; `n_threads` may differ.

        Raises:
            RuntimeError: If the environment is closed.
            ValueError: If settings differ, or the games end up in another state, as with another
                version of ale_py. The environment then needs a `reset()`.
        """
        emulator = self._open_emulator()
        if listed := differences(state["settings"], self._settings):
            raise ValueError(f"Expected a state of games with the same settings, got {listed}.")
        self._drop_pending_step(emulator)
        self._history.clear()
        observations: npt.NDArray[np.uint8] | None = None
        for each in state["history"]:
            observations = self._reset_emulator(emulator, np.asarray(each["seeds"], np.int64))
            for actions in np.asarray(each["actions"], np.uint8):
                self.step_async(actions)
                observations, *_ = self.step_wait()
        self._seeds = list(state["seeds"])
        found, expected = self._counters.state(), state["counters"]
        if self._history and any(not np.array_equal(found[key], expected[key]) for key in found):
            self._history.clear()
            raise ValueError(
                f"Expected the games to reach their former state, {expected}, got {found}. "
                "Install the versions that they were played with."
            )
        return observations

    def _open_emulator(self) -> AtariVectorEnv:
        if self._emulator is None:
            raise RuntimeError("Expected an open environment, but `close()` was called.")
        return self._emulator

    def close(self) -> None:
        """Stop the emulator threads; closing twice is harmless."""
        self._emulator = None

    def get_images(self) -> Sequence[npt.NDArray[np.uint8] | None]:
        """Return one None per game: the native environment renders nothing."""
        return [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each game, which is the same for all.

        Raises:
            AttributeError: If there is no such attribute.
        """
        if attr_name not in self._fixed:
            raise AttributeError(
                f"The games of an AtariVecEnv run in C++ and have no attribute {attr_name!r}; "
                f"known are {sorted(self._fixed)}."
            )
        return [self._fixed[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Raise an `AttributeError`: there is no Python environment to change."""
        raise AttributeError(
            f"The games of an AtariVecEnv run in C++ and take no attribute {attr_name!r}. Pass "
            "settings to `make_atari_vec_env`, and keep labels of your own beside the environment."
        )

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Raise an `AttributeError`: there is no Python environment to call."""
        raise AttributeError(
            f"The games of an AtariVecEnv run in C++ and have no method {method_name!r}."
        )

    def env_is_wrapped(
        self,
        wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]],
        indices: VecEnvIndices = None,
    ) -> list[bool]:
        """Return True per game for SB3's `Monitor`, whose "episode" infos are given, else False."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]
