"""Make a vector environment of an Atari game from arguments that are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from rl_infonce.atari.emulator import FRAME_SKIP, MAX_FRAMES_PER_GAME, NOOP_MAX
from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.shards import AGENT_SIZE
from rl_infonce.atari.vec_env import AtariVecEnv
from rl_infonce.checks import check_count, check_flag, check_number

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
    settings: dict[str, Any] = {
        "game": resolve_game(game),
        "n_envs": n_envs,
        "frame_stack": frame_stack,
        "frame_skip": frame_skip,
        "terminal_on_life_loss": terminal_on_life_loss,
        "clip_reward": clip_reward,
        "repeat_action_probability": repeat_action_probability,
        "noop_max": noop_max,
        "max_frames_per_episode": max_frames_per_episode,
        "full_action_space": full_action_space,
    }
    for name in ("n_envs", "frame_stack", "frame_skip", "max_frames_per_episode", "noop_max"):
        check_count(name, settings[name], at_least=int(name != "noop_max"), at_most=_MOST)
        settings[name] = int(settings[name])
    check_count("n_threads", 1 if n_threads is None else n_threads, at_most=_MOST)
    check_count("seed", 0 if seed is None else seed, at_least=0)
    for name in ("terminal_on_life_loss", "clip_reward", "full_action_space"):
        check_flag(name, settings[name])
    check_number("repeat_action_probability", repeat_action_probability, at_least=0.0, at_most=1.0)
    settings["repeat_action_probability"] = float(repeat_action_probability)
    emulator = AtariVectorEnv(
        settings["game"],
        settings["n_envs"],
        # 2 cores, 8 games: 1.7x the steps of one thread, and idle threads do not starve torch
        # (experiments/benchmarks/env_threads.py).
        num_threads=int(n_threads or 0),
        img_height=AGENT_SIZE,
        img_width=AGENT_SIZE,
        stack_num=settings["frame_stack"],
        life_loss_info=terminal_on_life_loss,
        **game_rules(settings),
    )
    return AtariVecEnv(emulator, settings, seed=seed)


def game_rules(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ale_py's environment by which the games of such settings go."""
    return {
        "max_num_frames_per_episode": settings["max_frames_per_episode"],
        "repeat_action_probability": settings["repeat_action_probability"],
        "full_action_space": settings["full_action_space"],
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "frameskip": settings["frame_skip"],
        "noop_max": settings["noop_max"],
        "reward_clipping": False,  # clipped later: C++ would lose the raw score
    }
