"""Make ale_py's native vector environment a Stable-Baselines3 `VecEnv`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from rl_infonce.atari.emulator import (
    FRAME_SKIP,
    MAX_FRAMES_PER_GAME,
    N_SEEDS,
    NOOP_MAX,
    checked_actions,
)
from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.shards import AGENT_SIZE
from rl_infonce.checks import check_count, check_flag, check_number, differences

_MOST = 2**31 - 1  # the emulator keeps counts in signed 32-bit integers


def make_atari_vec_env(
    game: str,
    n_envs: int = 8,
    *,
    seed: int | None = None,
    frame_stack: int = 4,
    frame_skip: int = FRAME_SKIP,
    terminal_on_life_loss: bool = True,
    clip_reward: bool = True,
    repeat_action_probability: float = 0.0,
    noop_max: int = NOOP_MAX,
    max_frames_per_episode: int = MAX_FRAMES_PER_GAME,
    n_threads: int | None = None,
    full_action_space: bool = False,
) -> AtariVecEnv:
    """Return `n_envs` copies of a game that run in C++ threads, for any SB3 algorithm.

    Preprocessing is that of Mnih et al. 2015 (max over the last two frames, unless `frame_skip` is
    1; gray, 84x84, stack), done by ale_py. Images come channels first and stacked: add no
    `VecFrameStack` and no `VecTransposeImage`. The images differ in bits from those of SB3's
    `make_atari_env`: use only one of the two in a study.

    Args:
        game: Any spelling that `resolve_game` understands.
        n_envs: Number of games, at least 1.
        seed: Seed of the first game, the i-th gets `seed + i`; None draws fresh entropy. The
            emulator keeps 31 bits: seeds that differ by a multiple of 2**31 play alike.
        frame_stack: Images per observation, at least 1.
        frame_skip: Emulator frames per agent step, at least 1.
        terminal_on_life_loss: Whether a lost life ends the learner's episode; see `AtariVecEnv`.
        clip_reward: Whether the learner gets the reward's sign; episode statistics stay raw.
        repeat_action_probability: Probability that a frame repeats the previous action ("sticky"
            actions, Machado et al. 2018 use 0.25), in [0, 1].
        noop_max: A game starts after 0 to `noop_max` - 1 idle frames, drawn uniformly. FIRE, where
            the game has it, is always pressed, in the first of them. At least 0, which counts as
            1. SB3's `make_atari_env` draws 1 to `noop_max`, both included, and adds FIRE.
        max_frames_per_episode: Emulator frames after which a game is truncated, at least 1.
        n_threads: Number of emulator threads, at least 1; None takes one per core, at most one per
            game. Trajectories do not depend on it.
        full_action_space: Whether to offer all 18 joystick actions instead of the game's own.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or the game is unknown.

    Example:
        >>> env = make_atari_vec_env("pong", n_envs=2, seed=0)
        >>> env.reset().shape
        (2, 4, 84, 84)
        >>> env.close()
    """
    rom_id = resolve_game(game)
    counts = {
        "n_envs": n_envs,
        "frame_stack": frame_stack,
        "frame_skip": frame_skip,
        "max_frames_per_episode": max_frames_per_episode,
        "n_threads": 1 if n_threads is None else n_threads,
    }
    for name, count in counts.items():
        check_count(name, count, at_least=1, at_most=_MOST)
    check_count("noop_max", noop_max, at_least=0, at_most=_MOST)
    check_count("seed", 0 if seed is None else seed, at_least=0)
    check_flag("terminal_on_life_loss", terminal_on_life_loss)
    check_flag("clip_reward", clip_reward)
    check_flag("full_action_space", full_action_space)
    check_number("repeat_action_probability", repeat_action_probability, at_least=0.0, at_most=1.0)
    settings = {
        "game": rom_id,
        "n_envs": int(n_envs),
        "frame_stack": int(frame_stack),
        "frame_skip": int(frame_skip),
        "terminal_on_life_loss": terminal_on_life_loss,
        "clip_reward": clip_reward,
        "repeat_action_probability": float(repeat_action_probability),
        "noop_max": int(noop_max),
        "max_frames_per_episode": int(max_frames_per_episode),
        "full_action_space": full_action_space,
    }
    emulator = AtariVectorEnv(
        rom_id,
        int(n_envs),
        # 2 cores, 8 games: 1.7x the steps of one thread, and idle threads do not starve torch
        # (experiments/benchmarks/env_threads.py).
        num_threads=int(n_threads or 0),
        img_height=AGENT_SIZE,
        img_width=AGENT_SIZE,
        stack_num=int(frame_stack),
        life_loss_info=terminal_on_life_loss,
        **game_rules(settings),
    )
    return AtariVecEnv(emulator, settings, seed=seed)


def game_rules(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ale_py's environment that decide how a game goes.

    Args:
        settings: The "settings" that `AtariVecEnv.get_state()` returns.
    """
    return {
        "max_num_frames_per_episode": settings["max_frames_per_episode"],
        "repeat_action_probability": settings["repeat_action_probability"],
        "full_action_space": settings["full_action_space"],
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "frameskip": settings["frame_skip"],
        "noop_max": settings["noop_max"],
        "reward_clipping": False,  # clipped later: C++ would lose the raw score
    }


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
        self._labels: list[dict[str, Any]] = [{} for _ in range(n_envs)]  # set by set_attr
        super().__init__(n_envs, image_space, action_space)
        self.game = game
        self.n_actions = len(emulator.ale.get_action_set())
        self._emulator: AtariVectorEnv | None = emulator
        self._settings = dict(settings)
        self._clip_reward = bool(settings["clip_reward"])
        self._history: list[_Segment] = []
        self._step_is_pending = False
        self._start_time = time.time()
        self._returns = np.zeros(n_envs, np.int64)
        self._lengths = np.zeros(n_envs, np.int64)
        self._lives = np.zeros(n_envs, np.int32)
        self._game_starts = np.zeros(n_envs, np.int32)
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
        self._returns[:] = 0
        self._lengths[:] = 0
        self._lives = info["lives"].copy()
        self._game_starts = _game_starts(info)
        self.reset_infos = [{"lives": int(lives)} for lives in self._lives]
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

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations [N, stack, 84, 84], rewards [N], dones [N] and one info per game.

        Raises:
            RuntimeError: If the environment is closed or no step was sent.
        """
        return self._step_games()

    def _step_games(
        self,
    ) -> tuple[
        npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]
    ]:
        emulator = self._open_emulator()
        if not self._step_is_pending:
            raise RuntimeError("Expected `step_async()` before `step_wait()`.")
        self._step_is_pending = False
        observations, rewards, terminated, truncated, info = emulator.recv()
        self._returns += rewards
        self._lengths += 1
        # ale_py restarts a finished game within the step; only then does the starting frame move
        # (the frame count within the game need not fall: a short game can end before the no-ops
        # of the next one do).
        starts = _game_starts(info)
        restarted = starts != self._game_starts
        dones = terminated | truncated
        infos = self._infos(terminated, truncated, restarted, info["lives"])
        for i in np.flatnonzero(dones):
            last = info["final_obs"] if restarted[i] else observations
            infos[i]["terminal_observation"] = last[i].copy()
        self._game_starts = starts
        self._lives = info["lives"].copy()
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
                {"seeds": each.seeds.copy(), "actions": self._actions_of(each).copy()}
                for each in self._history
            ],
            "counters": self._counters(),
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
        self._check_settings(state["settings"])
        self._drop_pending_step(emulator)
        self._history.clear()
        observations: npt.NDArray[np.uint8] | None = None
        for each in state["history"]:
            observations = self._reset_emulator(emulator, np.asarray(each["seeds"], np.int64))
            for actions in np.asarray(each["actions"], np.uint8):
                self.step_async(actions)
                observations, *_ = self._step_games()
        self._seeds = list(state["seeds"])
        found, expected = self._counters(), state["counters"]
        if self._history and any(not np.array_equal(found[key], expected[key]) for key in found):
            self._history.clear()
            raise ValueError(
                f"Expected the games to reach their former state, {expected}, got {found}. "
                "Install the versions that they were played with."
            )
        return observations

    def _actions_of(self, segment: _Segment) -> npt.NDArray[np.uint8]:
        return np.frombuffer(segment.actions, np.uint8).reshape(-1, self.num_envs)

    def _counters(self) -> dict[str, Any]:
        return {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "lives": self._lives.copy(),
            "game_starts": self._game_starts.copy(),
        }

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        if listed := differences(settings, self._settings):
            raise ValueError(f"Expected a state of games with the same settings, got {listed}.")

    def _infos(
        self,
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        restarted: npt.NDArray[np.bool_],
        lives: npt.NDArray[np.int32],
    ) -> list[dict[str, Any]]:
        # After a restart, `lives` is that of the new game. The game that is over has none, even if
        # its counter had more a step before (Gravitar, Amidar); one that was cut off keeps its own.
        left = np.where(restarted, np.where(terminated, 0, self._lives), lives)
        infos: list[dict[str, Any]] = [
            {"lives": int(left[i]), "TimeLimit.truncated": bool(truncated[i] and not terminated[i])}
            for i in range(self.num_envs)
        ]
        for i in np.flatnonzero(restarted):
            seconds = round(time.time() - self._start_time, 6)
            length = int(self._lengths[i])
            infos[i]["episode"] = {"r": float(self._returns[i]), "l": length, "t": seconds}
            self.reset_infos[i] = {"lives": int(lives[i])}
            self._returns[i] = 0
            self._lengths[i] = 0
        return infos

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
        """Return an attribute of each game: a fixed one, or what `set_attr` stored.

        Raises:
            AttributeError: If there is no such attribute.
        """
        values = [{**self._labels[i], **self._fixed} for i in self._get_indices(indices)]
        if not all(attr_name in value for value in values):
            raise AttributeError(
                f"The games of an AtariVecEnv run in C++ and have no attribute {attr_name!r}; "
                f"known are {sorted(self._fixed)} and what `set_attr` stored."
            )
        return [value[attr_name] for value in values]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Store a label with each game; it has no effect on the emulator.

        Raises:
            AttributeError: If the attribute is one of the fixed ones.
        """
        if attr_name in self._fixed:
            raise AttributeError(f"{attr_name!r} is fixed when an AtariVecEnv is made.")
        for i in self._get_indices(indices):
            self._labels[i][attr_name] = value

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Refuse: there is no Python environment to call.

        Raises:
            AttributeError: Always.
        """
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


def _game_starts(info: dict[str, Any]) -> npt.NDArray[np.int32]:
    """Return the emulator frame at which each game started, [N]."""
    starts: npt.NDArray[np.int32] = info["frame_number"] - info["episode_frame_number"]
    return starts
