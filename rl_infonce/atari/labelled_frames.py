"""Read collected frames: images on disk, RAM, episode ids, and labels made from RAM."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_infonce.atari.labels import decode, labels_hash, load_labels
from rl_infonce.atari.manifest import folder_path, read_manifest
from rl_infonce.atari.shards import (
    N_STACKED,
    check_shard_files,
    columns,
    open_shard,
    shard_folder,
)
from rl_infonce.checks import check_choice
from rl_infonce.files.npy_rows import RowsOnDisk

if TYPE_CHECKING:
    from rl_infonce.probing.data import LabelledObservations

Images = npt.NDArray[np.uint8]


def load_frames(folder: str | os.PathLike[str], *, verify: bool = True) -> LabelledFrames:
    """Return the frames that `collect` wrote into a folder; images are read when indexed.

    Args:
        folder: Folder that was given to `collect`; "~" is expanded.
        verify: Whether to compare the SHA-256 of every file, which reads them once; sizes are
            compared in any case.

    Raises:
        TypeError: If `folder` is not a path.
        FileNotFoundError: If the folder holds no manifest.
        ValueError: If the format version differs, the collection is unfinished, a file is missing,
            truncated or changed (the message names it and its hash), or episodes and games do
            not start where they must.
    """
    path = folder_path("folder", folder)
    manifest = read_manifest(path)
    settings, shards = manifest["settings"], manifest["shards"]
    if len(shards) < settings["n_shards"]:
        raise ValueError(
            f"Expected a finished collection in {path}, got {len(shards)} of "
            f"{settings['n_shards']} shards. Collect again with the same settings to complete it."
        )
    content = columns(settings)
    for shard in shards:
        check_shard_files(path, shard, verify=verify)
    arrays, n_rows = [], 0
    for shard in shards:
        arrays.append(open_shard(path, shard["index"], shard["rows"], content))
        _check_episodes(shard_folder(path, shard["index"]), arrays[-1], first_row=n_rows)
        n_rows += shard["rows"]
    return LabelledFrames(manifest, arrays)


def _check_episodes(folder: Path, shard: Mapping[str, Any], *, first_row: int) -> None:
    ids, games = shard["episode_ids"], shard["game_starts"]
    starts = np.diff(ids, prepend=-1) != 0
    if not np.array_equal(ids, first_row + _first_rows(starts)):
        raise ValueError(
            f"Expected the ids in {folder / 'episode_ids.npy'} to be the rows at which episodes "
            "start, got others: the file is damaged or from elsewhere."
        )
    if not games[:1].all() or (games & ~starts).any():
        raise ValueError(
            f"Expected the games in {folder / 'game_starts.npy'} to start at the first row and "
            "with an episode, got others: the file is damaged or from elsewhere."
        )


class LabelledFrames:
    """K states of a game: images, RAM and episode ids, from `collect` or `load_frames`.

    Row i is a state in which the policy acted; `ram[i]` is the emulator's RAM at the very end of
    the frame that row i shows last. Rows of a shard follow each other in time.

    Attributes:
        manifest: What the folder's `manifest.json` says: settings, versions, hashes of all files.
        game: One of `games()`.
    """

    def __init__(self, manifest: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]) -> None:
        self.manifest = dict(manifest)
        self.game: str = manifest["settings"]["game"]
        self._shards = shards

    def __len__(self) -> int:
        return sum(len(shard["ram"]) for shard in self._shards)

    @cached_property
    def ram(self) -> npt.NDArray[np.uint8]:
        """Return the 128 bytes of RAM, [K, 128] uint8, read-only."""
        return _read_only(self.column("ram"))

    @cached_property
    def episode_ids(self) -> npt.NDArray[np.int64]:
        """Return [K] ids, read-only: equal within an episode, and the row at which it starts.

        A lost life ends an episode although the game goes on, as for an agent in
        `make_atari_vec_env`. The first row with fewer lives belongs to the new episode. A counter
        that falls to 0 ends no episode: Frogger, for one, counts its last life as 0.
        """
        return _read_only(self.column("episode_ids"))

    @cached_property
    def game_ids(self) -> npt.NDArray[np.int64]:
        """Return [K] ids, read-only: equal within a game, and the row at which it starts."""
        return _read_only(_first_rows(self.column("game_starts")))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column other than the images, [K, ...].

        Args:
            name: "ram" [K, 128] uint8, "episode_ids" [K] int64, "game_starts" [K] bool (a new
                game, not only a new life), "lives" [K] uint8, "actions" [K] uint8 (index into
                the game's own actions, which the manifest names) taken in the state of the row,
                "rewards" [K] int32 (raw) which that action brought.

        Raises:
            ValueError: If there is no such column.
        """
        check_choice("name", name, set(self._shards[0]) - {"screen", "agent"})
        return np.concatenate([shard[name] for shard in self._shards])

    def observations(self, view: str | None = None) -> FrameView:
        """Return the images of a view, read from disk when they are indexed.

        Args:
            view: "screen", one gray image as the emulator shows it [K, 1, H, W], 210 by 160 in all
                games with labels, or "agent", the stack that `make_atari_vec_env` gives an agent
                [K, 4, 84, 84]. None takes "screen" if it was collected, else "agent".

        Raises:
            ValueError: If there is no such view, or it was not collected.
        """
        view = self._checked_view(view)
        images = [shard[view] for shard in self._shards]
        starts = [shard["game_starts"] for shard in self._shards]
        return FrameView(images, starts, n_stacked=N_STACKED if view == "agent" else 1)

    def _checked_view(self, view: str | None) -> str:
        collected: list[str] = self.manifest["settings"]["views"]
        if view is None:
            return "screen" if "screen" in collected else collected[0]
        check_choice("view", view, collected)
        return view

    def labelled(self, view: str | None = None, version: str = "corrected") -> LabelledObservations:
        """Return images of a view with the variables which the RAM labels name.

        Args:
            view: Name of the view, as in `observations`.
            version: Version of the labels, one of `label_versions()`.

        Raises:
            ValueError: If the view was not collected, there is no such version, or the game has
                no labels (the message lists the games that have).
        """
        from rl_infonce.probing.data import LabelledObservations

        view = self._checked_view(view)
        variables = load_labels(self.game, version)
        settings = self.manifest["settings"]
        return LabelledObservations(
            observations=self.observations(view),
            labels=decode(self.ram, self.game, version),
            episode_ids=self.episode_ids,
            group_ids=self.game_ids,
            categories={name: variable.categories for name, variable in variables.items()},
            provenance={
                "game": self.game,
                "view": view,
                "label_version": version,
                "labels_hash": labels_hash(self.game, version),
                "frames_hash": self.frames_hash,
                **{key: settings[key] for key in ("policy", "seed", "n_steps", "n_shards")},
                "ale_py": settings["ale_py"],
            },
        )

    @property
    def frames_hash(self) -> str:
        """Return 16 hexadecimal digits that change with any byte of the collection."""
        digest = hashlib.sha256()
        for shard in self.manifest["shards"]:
            for name, file in sorted(shard["files"].items()):
                digest.update(f"{name} {file['sha256']}\n".encode())
        return digest.hexdigest()[:16]


def _first_rows(starts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return [K], the row at which each row's run began, which is 0 before the first start."""
    return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


class FrameView:
    """K images or stacks of images on disk, indexed like an array of uint8 [K, C, H, W].

    An integer gives [C, H, W]; a slice, a mask [K] or integers [B] give [B, C, H, W], always in
    fresh memory. A stack holds the images of the latest states, oldest first, and zeros in place of
    what lies before the start of the game, as ale_py's native environment does; it does reach back
    over a lost life.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        images: Sequence[Images | RowsOnDisk],
        game_starts: Sequence[npt.NDArray[np.bool_]],
        *,
        n_stacked: int,
    ) -> None:
        self._images = images
        lengths = [len(shard) for shard in images]
        self._first_rows = np.cumsum([0, *lengths])
        starts = np.concatenate(game_starts)
        self._rows = np.arange(len(starts))
        self._game_first_rows = _first_rows(starts)
        self._ages = np.arange(n_stacked)[::-1]
        self.shape: tuple[int, ...] = (len(starts), n_stacked, *images[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Images]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> Images:
        rows = self._rows[index]
        stacked = rows[..., None] - self._ages  # [..., C]
        is_in_game = stacked >= self._game_first_rows[rows][..., None]
        observations = np.zeros((*stacked.shape, *self.shape[2:]), np.uint8)
        shard_of = np.searchsorted(self._first_rows, stacked, side="right") - 1
        for shard in np.unique(shard_of[is_in_game]):
            chosen = is_in_game & (shard_of == shard)
            observations[chosen] = self._images[shard][stacked[chosen] - self._first_rows[shard]]
        return observations
