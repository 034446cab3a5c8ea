"""Where `rl-infonce probe` finds frames: a folder of the user's, or a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_infonce.atari.cache import N_SHARDS, cached_frames
from rl_infonce.atari.collect import RANDOM_POLICIES, collect
from rl_infonce.atari.labelled_frames import LabelledFrames, load_frames
from rl_infonce.atari.labels import labelled_games, load_labels
from rl_infonce.atari.manifest import MANIFEST, read_manifest
from rl_infonce.checks import check_count

_DEFAULTS: dict[str, Any] = {"n_steps": 50_000, "policy": "random", "seed": 0}
_FLAGS = {"n_steps": "--n-frames", "policy": "--policy", "seed": "--data-seed"}


@dataclass(frozen=True)
class FrameSource:
    """Frames of several games with one set of settings.

    Attributes:
        folder: Given by the user; None is the cache.
        view: "screen" or "agent".
        n_steps: Frames per game.
        policy: Who played.
        seed: Of the games.
    """

    folder: Path | None
    view: str
    n_steps: int
    policy: str
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return what scores must share to be compared."""
        return {
            "view": self.view,
            "n_frames": self.n_steps,
            "policy": self.policy,
            "data_seed": self.seed,
        }

    def open(self, game: str, *, progress: bool) -> LabelledFrames:
        """Return the frames of a game; collect what is missing.

        Raises:
            ValueError: If the folder's frames have other settings or are damaged.
            OSError: If the folder cannot be read or written, or the disk is too small.
        """
        if self.folder is None:
            return cached_frames(
                game,
                self.n_steps,
                seed=self.seed,
                policy=self.policy,
                view=self.view,
                progress=progress,
            )
        folder = _folder_in(self.folder, game)
        views, n_shards = [self.view], N_SHARDS
        if (folder / MANIFEST).is_file():
            stored = read_manifest(folder)["settings"]
            views, n_shards = stored["views"], stored["n_shards"]
        if self.policy not in RANDOM_POLICIES:
            return load_frames(folder)
        return collect(
            game,
            self.n_steps,
            folder=folder,
            policy=self.policy,
            seed=self.seed,
            n_shards=n_shards,
            views=views,
            progress=progress,
        )


def find_games(names: Sequence[str], labels: str) -> list[str]:
    """Return the games asked for, once each, after checking that all have labels.

    Args:
        names: Canonical ones; "all" stands for all games with labels.
        labels: Their version.

    Raises:
        ValueError: If a game has no labels, or there is no such version.
    """
    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys(labelled_games(labels) if name == "all" else [name])
    for game in found:
        load_labels(game, labels)
    return list(found)


def find_frames(
    games: Sequence[str],
    folder: Path | None,
    view: str,
    *,
    n_steps: int | None,
    policy: str | None,
    seed: int | None,
) -> FrameSource:
    """Return the source of frames after comparing what is there with what is asked for.

    Args:
        games: To be probed.
        folder: A folder of `collect`, or of several, named after their games; None is the cache.
        view: "screen" or "agent".
        n_steps: Frames per game; None takes what is there, or 50,000.
        policy: Who plays; None takes what is there, or "random".
        seed: Of the games; None takes what is there, or 0.

    Raises:
        ValueError: If the folder holds frames of other settings; they are named.
        OSError: If it cannot be read.
    """
    check_count("--n-frames", N_SHARDS if n_steps is None else n_steps, at_least=N_SHARDS)
    check_count("--data-seed", 0 if seed is None else seed, at_least=0)
    wanted: dict[str, Any] = {"n_steps": n_steps, "policy": policy, "seed": seed}
    for game in games:
        place = None if folder is None else _folder_in(folder, game)
        if place is None or not (place / MANIFEST).is_file():
            continue
        stored = read_manifest(place)["settings"]
        _check_stored(place, stored, game, view)
        for name, value in wanted.items():
            if value is None:
                wanted[name] = stored[name]
            elif value != stored[name]:
                raise ValueError(
                    f"Expected {_FLAGS[name]} as the frames in {place} have it, {stored[name]!r}, "
                    f"got {value!r}. Collect into another folder."
                )
    given = {name: value for name, value in wanted.items() if value is not None}
    return FrameSource(folder, view, **(_DEFAULTS | given))


def _check_stored(place: Path, stored: dict[str, Any], game: str, view: str) -> None:
    if stored["game"] != game:
        raise ValueError(f"Expected frames of {game} in {place}, got {stored['game']}.")
    if view not in stored["views"]:
        raise ValueError(
            f"Expected frames of view {view!r} in {place}, got {stored['views']}. Collect them "
            "into another folder."
        )


def _folder_in(folder: Path, game: str) -> Path:
    return folder if (folder / MANIFEST).is_file() else folder / game
