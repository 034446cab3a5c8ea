"""Find the frames that `rl-infonce probe` scores: in a folder of the user, or in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_infonce.atari.cache import N_SHARDS, cached_frames
from rl_infonce.atari.collect import RANDOM_POLICIES, collect
from rl_infonce.atari.labelled_frames import LabelledFrames, load_frames
from rl_infonce.atari.labels import label_versions, labelled_games, load_labels
from rl_infonce.atari.manifest import MANIFEST, existing_shards, read_manifest
from rl_infonce.checks import check_choice, check_count

_DEFAULTS: dict[str, Any] = {"n_frames": 50_000, "policy": "random", "seed": 0}
_FLAGS = {"n_frames": "--n-frames", "policy": "--policy", "seed": "--data-seed"}


@dataclass(frozen=True)
class FrameSource:
    """Frames of several games with one set of settings; without a folder, those of the cache."""

    folder: Path | None
    view: str
    n_frames: int
    policy: str
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return what scores must share to be compared."""
        return {
            "view": self.view,
            "n_frames": self.n_frames,
            "policy": self.policy,
            "data_seed": self.seed,
        }

    def open(self, game: str, *, progress: bool) -> LabelledFrames:
        """Return the frames of a game, after collecting those that are missing."""
        if self.folder is None:
            return cached_frames(
                game,
                self.n_frames,
                seed=self.seed,
                policy=self.policy,
                view=self.view,
                progress=progress,
            )
        folder = _folder_in(self.folder, game)
        stored = _stored(folder)
        if self.policy not in RANDOM_POLICIES or (stored and _is_complete(folder)):
            return load_frames(folder)  # of whatever version of ale_py, unlike `collect`
        return collect(
            game,
            self.n_frames,
            folder=folder,
            policy=self.policy,
            seed=self.seed,
            n_shards=stored.get("n_shards", N_SHARDS),
            views=stored.get("views", [self.view]),
            progress=progress,
        )


def find_games(names: Sequence[str], labels: str) -> list[str]:
    """Return the games asked for, once each, after checking that all have labels.

    Names are canonical; "all" stands for all games with labels of this version.
    """
    check_choice("--labels", labels, label_versions())
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
    n_frames: int | None,
    policy: str | None,
    seed: int | None,
) -> FrameSource:
    """Return the source of frames after comparing what is there with what is asked for.

    The folder is one of `collect`, or holds several, named after their games; None is the cache.
    A setting of None is that of the frames that are there, or its default.
    """
    check_count("--n-frames", N_SHARDS if n_frames is None else n_frames, at_least=N_SHARDS)
    check_count("--data-seed", 0 if seed is None else seed, at_least=0)
    wanted: dict[str, Any] = {"n_frames": n_frames, "policy": policy, "seed": seed}
    first_place = None
    for game in games:
        place = folder and _folder_in(folder, game)
        stored = place and _stored(place)
        if not stored:
            continue
        if stored["game"] != game:
            raise ValueError(f"Expected frames of {game} in {place}, got {stored['game']}.")
        if view not in stored["views"]:
            raise ValueError(
                f"Expected frames of view {view!r} in {place}, got {stored['views']}. Collect them "
                "into another folder."
            )
        stored["n_frames"] = stored["n_steps"]
        _check_agrees(wanted, stored, place, first_place)
        wanted |= {name: stored[name] for name in wanted}
        first_place = first_place or place
    given = {name: value for name, value in wanted.items() if value is not None}
    return FrameSource(folder, view, **(_DEFAULTS | given))


def _check_agrees(
    wanted: Mapping[str, Any], stored: Mapping[str, Any], place: Path | None, former: Path | None
) -> None:
    """Raise unless the frames in a place are as wanted, by flags or by those in a former place."""
    for name, value in wanted.items():
        if value in (None, stored[name]):
            continue
        if former is not None:
            raise ValueError(
                f"Expected frames of the same settings, got {_FLAGS[name]} {value!r} in {former} "
                f"and {stored[name]!r} in {place}. Probe these games one by one, each with its "
                "own --output."
            )
        raise ValueError(
            f"Expected {_FLAGS[name]} as the frames in {place} have it, {stored[name]!r}, got "
            f"{value!r}. Collect frames into another folder."
        )


def _stored(folder: Path) -> dict[str, Any]:
    """Return the settings of the frames in a folder; none without frames."""
    return dict(read_manifest(folder)["settings"]) if (folder / MANIFEST).is_file() else {}


def _is_complete(folder: Path) -> bool:
    """Return whether a folder with a manifest holds every shard."""
    manifest = read_manifest(folder)
    n_shards: int = manifest["settings"]["n_shards"]
    return len(existing_shards(folder, manifest)) == n_shards


def _folder_in(folder: Path, game: str) -> Path:
    return folder if (folder / MANIFEST).is_file() else folder / game
