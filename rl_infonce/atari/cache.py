"""Collect frames of random play once, and find them again in a cache."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.atari.collect import RANDOM_POLICIES, collect
from rl_infonce.atari.games import resolve_game
from rl_infonce.atari.manifest import folder_path
from rl_infonce.atari.shards import VIEWS
from rl_infonce.checks import check_choice, check_count

if TYPE_CHECKING:
    from rl_infonce.atari.labelled_frames import LabelledFrames

N_SHARDS = 8  # the emulators of Anand et al. 2019


def default_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/rl_infonce`, by default `~/.cache/rl_infonce`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rl_infonce"


def cached_frames(
    game: str,
    n_frames: int,
    *,
    seed: int,
    policy: str = "random",
    view: str = "agent",
    cache_folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> LabelledFrames:
    """Return frames of random play, which the first call for these settings collects.

    The folder `<cache_folder>/frames/<settings>` keeps them, 7.1 kB per frame of an agent and 33.6
    kB per screen, with the emulator's RAM, from which labels of any version are decoded. Delete the
    folder to free the space. Arguments are those of `collect`, with at least 8 frames, one per
    emulator; a `cache_folder` of None is `default_cache_folder()`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or a folder holds frames of other settings.
        OSError: If the cache cannot be written; the message says how to name another.
    """
    check_count("n_frames", n_frames, at_least=N_SHARDS)
    check_choice("policy", policy, RANDOM_POLICIES)
    check_choice("view", view, VIEWS)
    base = default_cache_folder()
    if cache_folder is not None:
        base = folder_path("cache_folder", cache_folder)
    settings = f"{policy}-{view}-{n_frames}-seed-{seed}-ale-{version('ale-py')}"
    folder = base / "frames" / f"{resolve_game(game)}-{settings}"
    try:
        return collect(
            game,
            n_frames,
            folder=folder,
            policy=policy,
            seed=seed,
            n_shards=N_SHARDS,
            views=(view,),
            progress=progress,
        )
    except OSError as error:
        if error.errno is None:  # not the system's, e.g. another process that collects there
            raise
        raise OSError(
            error.errno,
            f"Expected a cache that takes frames in {folder}, got: {error.strerror}. Let "
            "XDG_CACHE_HOME or `cache_folder` name another folder, as --frames of rl-infonce probe "
            "does, or make room there",
        ) from error
