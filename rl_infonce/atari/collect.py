"""Collect frames with RAM and episode ids: one emulator per shard, in parallel, resumable."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ale_py

from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.labelled_frames import LabelledFrames, load_frames
from rl_infonce.atari.manifest import MOST_SHARDS, folder_path
from rl_infonce.atari.shards import AGENT_SIZE, N_STACKED, VIEWS
from rl_infonce.checks import check_choice, check_count, check_flag

if TYPE_CHECKING:
    from rl_infonce.atari.playing import Policy

RANDOM_POLICIES = ("random", "random_without_noop")


def collect(
    game: str,
    n_steps: int = 50_000,
    *,
    folder: str | os.PathLike[str],
    policy: str | Policy = "random",
    policy_name: str | None = None,
    seed: int = 0,
    n_shards: int = 8,
    views: Sequence[str] = VIEWS,
    n_workers: int | None = None,
    progress: bool = False,
) -> LabelledFrames:
    """Play a game and keep its images and RAM in a folder.

    Where it shapes the data, the protocol is that of Anand et al. 2019: no sticky actions, four
    frames per action, the maximum of the last two, idle frames at the start of a game, a lost life
    ends an episode while the game goes on, 8 emulators of 6,250 steps each. It deviates so that an
    agent trained in `make_atari_vec_env` is probed on exactly what it sees: a game starts with 0 to
    29 idle frames, the first of which is FIRE where there is FIRE, not with 1 to 30 and then
    actions 1 and 2 for four frames each; FIRE is pressed at the start of a game only, not after a
    lost life, which no idle step follows either; the maximum is taken over gray frames instead of
    colours (which changes below 1% of the pixels, and 6% in Battle Zone). RAM and image always
    belong to the same state, whereas the published code gives the first frame of an episode the
    labels of the state before.

    Each shard is one emulator, seeded by `seed` and the shard's number. With a named policy, its
    bytes depend on nothing else, neither on `n_workers` nor on interruptions. Call the function
    again with the same settings to complete an interrupted collection, or to read a complete one,
    which needs no permission to write and never waits.

    Args:
        game: Any spelling that `resolve_game` understands.
        n_steps: Number of states, at least `n_shards`; the first shards get one more if the number
            does not divide.
        folder: Folder for the frames, with "~" expanded; it is made, and must hold nothing else.
        policy: "random", uniform over the game's own actions; "random_without_noop", the paper's,
            without NOOP; or a function from uint8 [B, 4, 84, 84] to actions [B], called in
            lock-step for up to 8 shards at once, such as
            `rl_infonce.agents.epsilon_greedy_policy(model, 0.2, rng)`.
        policy_name: Name of a function in the manifest, not empty; a function needs one. Only the
            policy of that name completes or reads a folder, so name all that decides the actions:
            the weights, epsilon.
        seed: Seed of the collection, at least 0.
        n_shards: Number of emulators, at least 1, at most 10,000.
        views: Views to keep: "screen" (gray as the emulator shows it, 33.6 kB per state) and
            "agent" (84x84, 7.1 kB per state; stacked when read).
        n_workers: Processes for a named policy, at least 1, at most one per shard; None takes one
            per core, fewer for little work. A function is called in this process only.
        progress: Whether to show a bar.

    Returns:
        The frames, as `load_frames` returns them.

    Raises:
        TypeError: If an argument has the wrong type, a function has no `policy_name` or does not
            return integers.
        ValueError: If an argument is out of range, the game is unknown, the function returns
            actions of another shape or range, it has another `n_actions` than the game or another
            `image_shape` than (4, 84, 84), or the folder holds damaged frames or those of other
            settings.
        OSError: If the disk is too small, checked before the start and while writing, or a process
            was killed. Finished shards are kept.
    """
    # OpenCV is needed to collect frames, not to read them.
    from rl_infonce.atari.collection import Collection, is_finished
    from rl_infonce.atari.playing import play

    settings = _settings(game, n_steps, policy, policy_name, seed, n_shards, views)
    check_flag("progress", progress)
    if n_workers is not None:
        check_count("n_workers", n_workers, at_least=1)
    path = folder_path("folder", folder)
    path.mkdir(parents=True, exist_ok=True)
    if not is_finished(path, settings):
        with Collection.opened(path, settings) as collection:
            if collection.missing:  # no other process completed it meanwhile
                collection.check_free_space()
                play(collection, policy, n_workers=n_workers, progress=progress)
    return load_frames(path, verify=False)  # found shards were verified, new ones just written


def _settings(
    game: str,
    n_steps: int,
    policy: str | Policy,
    policy_name: str | None,
    seed: int,
    n_shards: int,
    views: Sequence[str],
) -> dict[str, Any]:
    """Return the checked settings that decide which bytes are collected, as JSON holds them."""
    from rl_infonce.atari import emulator

    rom_id = resolve_game(game)
    check_count("n_shards", n_shards, at_least=1, at_most=MOST_SHARDS)
    check_count("n_steps", n_steps)
    if n_steps < n_shards:
        raise ValueError(
            f"Expected `n_steps` to be at least one step per shard ({n_shards=}), got {n_steps}. "
            "Pass fewer `n_shards`."
        )
    check_count("seed", seed, at_least=0)
    name = _checked_policy_name(policy, policy_name)
    facts = emulator.game_facts(rom_id)
    n_actions = getattr(policy, "n_actions", len(facts.actions))
    if n_actions != len(facts.actions):
        raise ValueError(
            f"Expected `policy` with the {len(facts.actions)} actions of {rom_id}, got one with "
            f"{n_actions}: the policy was trained on another game, or with full_action_space=True."
        )
    shape = (N_STACKED, AGENT_SIZE, AGENT_SIZE)
    if (got := getattr(policy, "image_shape", shape)) != shape:
        raise ValueError(
            f"Expected `policy` of images of shape {shape}, as make_atari_vec_env gives them, got "
            f"{got}: the policy was trained with another frame stack or another size."
        )
    _check_views(views)
    return {
        "game": rom_id,
        "policy": name,
        "seed": int(seed),
        "n_steps": int(n_steps),
        "n_shards": int(n_shards),
        "views": [view for view in VIEWS if view in views],
        "screen_shape": list(facts.screen_shape),
        "actions": list(facts.actions),
        "frame_skip": emulator.FRAME_SKIP,
        "noop_max": emulator.NOOP_MAX,
        "max_frames_per_game": emulator.MAX_FRAMES_PER_GAME,
        "ale_py": ale_py.__version__,
    }


def _check_views(views: Sequence[str]) -> None:
    if not isinstance(views, Sequence) or not all(isinstance(view, str) for view in views):
        raise TypeError(f"Expected `views` to be a list of names from {VIEWS}, got {views!r}.")
    if isinstance(views, str) or not views or len(set(views)) != len(views):
        raise ValueError(f"Expected `views` to be distinct names from {VIEWS}, got {views!r}.")
    for view in views:
        check_choice("views", view, VIEWS)


def _checked_policy_name(policy: str | Policy, policy_name: str | None) -> str:
    if isinstance(policy, str):
        check_choice("policy", policy, RANDOM_POLICIES)
        if policy_name is not None:
            raise ValueError(f"Expected no `policy_name` with policy={policy!r}, got one.")
        return policy
    if not callable(policy) or _is_torch_module(policy):
        raise TypeError(
            f"Expected `policy` to be one of {RANDOM_POLICIES} or a function of observations, got "
            f"{type(policy).__name__}. For an SB3 model, pass "
            "rl_infonce.agents.epsilon_greedy_policy(model, epsilon, rng); for another "
            "network, pass a function that returns its actions."
        )
    if not isinstance(policy_name, str):
        raise TypeError(
            "Expected `policy_name` to be a str that names all that decides the actions of "
            f"`policy`, got {policy_name!r}."
        )
    if not policy_name.strip() or policy_name in RANDOM_POLICIES:
        raise ValueError(
            f"Expected `policy_name` to be a name other than {RANDOM_POLICIES}, got "
            f"{policy_name!r}."
        )
    return policy_name


def _is_torch_module(policy: object) -> bool:
    """Return whether a policy is a torch module, without importing torch only to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)
