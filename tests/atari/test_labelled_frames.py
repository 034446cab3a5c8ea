import copy
import gc
import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce.atari import collect, decode, labels_hash, load_frames
from rl_infonce.atari.labelled_frames import FrameView
from rl_infonce.atari.manifest import read_manifest
from rl_infonce.files import npy_rows

Images = npt.NDArray[np.uint8]


def three_games() -> tuple[list[Images], list[npt.NDArray[np.bool_]]]:
    """Return two shards of numbered images: games of 6 and 3 rows, and one of 5."""
    images = np.arange(1, 15, dtype=np.uint8)[:, None, None] * np.ones((2, 3), np.uint8)
    starts = np.zeros(14, np.bool_)
    starts[[0, 6, 9]] = True
    return [images[:9], images[9:]], [starts[:9], starts[9:]]


def stacked_by_loop(n_stacked: int) -> Images:
    """Return all observations, each made as an environment makes it: push, or clear and push."""
    images, starts = (np.concatenate(shards) for shards in three_games())
    stack = np.zeros((n_stacked, *images.shape[1:]), np.uint8)
    observations = []
    for image, is_start in zip(images, starts, strict=True):
        if is_start:
            stack = np.zeros_like(stack)
        stack = np.concatenate([stack[1:], image[None]])
        observations.append(stack)
    return np.array(observations)


@pytest.mark.parametrize("n_stacked", [1, 2, 4])
@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        np.int64(7),
        slice(None),
        slice(12, 3, -2),
        slice(0, 0),
        [5, 6, 9],
        np.array([13, 0, 9, 9]),
        np.array([[1, 2], [8, 9]]),
        np.arange(14) % 3 == 0,
    ],
    ids=str,
)
def test_views_index_like_the_array_of_all_stacks(n_stacked: int, index: Any) -> None:
    view = FrameView(*three_games(), n_stacked=n_stacked)
    whole = stacked_by_loop(n_stacked)
    assert (view.shape, view.dtype, len(view)) == (whole.shape, whole.dtype, 14)
    np.testing.assert_array_equal(view[index], whole[index])
    assert view[index].flags.writeable


def test_views_are_iterated_to_their_end_and_refuse_what_lies_beyond() -> None:
    view = FrameView(*three_games(), n_stacked=4)
    np.testing.assert_array_equal(list(view), stacked_by_loop(4))
    for index in (14, -15, [0, 14]):
        with pytest.raises(IndexError):
            view[index]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pong")
    collect("Pong", 70, folder=folder, n_shards=2, seed=3, views=["agent"])
    return folder


@pytest.fixture
def folder(collected: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged."""
    return Path(shutil.copytree(collected, tmp_path / "copy"))


@pytest.mark.atari
def test_labelled_frames_carry_what_a_probe_needs(collected: Path) -> None:
    frames = load_frames(collected)
    labelled = frames.labelled("agent", version="anand2019")
    assert labelled.observations.shape == (70, 4, 84, 84)
    names = decode(frames.ram, "pong", "anand2019").keys()
    assert labelled.labels.keys() == labelled.categories.keys() == names
    np.testing.assert_array_equal(labelled.labels["ball_x"], frames.ram[:, 49])
    assert labelled.categories["ball_x"] == ("small_object_localization",)
    np.testing.assert_array_equal(labelled.episode_ids, np.repeat([0, 35], 35))
    provenance = json.loads(json.dumps(labelled.provenance))
    assert provenance["labels_hash"] == labels_hash("pong", "anand2019")
    assert provenance["frames_hash"] == frames.frames_hash
    assert (provenance["game"], provenance["policy"], provenance["seed"]) == ("pong", "random", 3)


@pytest.mark.atari
def test_what_was_not_collected_is_refused_by_name(collected: Path) -> None:
    frames = load_frames(collected)
    with pytest.raises(ValueError, match=re.escape("`view` to be one of ['agent'], got 'screen'")):
        frames.observations("screen")
    with pytest.raises(ValueError, match=r"`name` to be one of .* got 'agent'"):
        frames.column("agent")
    with pytest.raises(ValueError, match="`version` to be one of"):
        frames.labelled("agent", version="2018")


@pytest.mark.atari
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_loaded_frames_keep_no_descriptors_and_read_ones_a_bounded_number(
    collected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npy_rows, "_mapped", WeakKeyDictionary())
    monkeypatch.setattr(npy_rows, "_MOST_MAPPED", 3)
    before = n_descriptors()
    frames = [load_frames(collected, verify=False) for _ in range(20)]  # of 2 shards each
    assert n_descriptors() == before
    first = [each.observations("agent")[[0, -1]] for each in frames]
    assert n_descriptors() == before + 3
    for images in first:
        np.testing.assert_array_equal(images, frames[0].observations("agent")[[0, -1]])
    del frames
    gc.collect()
    assert n_descriptors() == before


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_copies_of_a_file_on_disk_are_mapped_on_their_own(tmp_path: Path) -> None:
    for index in range(2):
        np.save(tmp_path / f"{index}.npy", np.full((3, 2), index, np.uint8))
    before = len(npy_rows._mapped)
    for index in (0, 1) * 20:  # an `id` is used again at once
        rows = npy_rows.RowsOnDisk(tmp_path / f"{index}.npy", np.uint8, (2,))
        for copied in (rows, pickle.loads(pickle.dumps(rows)), copy.copy(rows)):
            np.testing.assert_array_equal(copied[[0, 2]], np.full((2, 2), index))
    del rows, copied
    gc.collect()
    assert len(npy_rows._mapped) <= before


def test_more_shards_than_descriptors_are_read(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    images = np.random.default_rng(0).integers(0, 256, (150, 1, 2, 3), np.uint8)
    for index, shard in enumerate(images):
        np.save(tmp_path / f"{index}.npy", shard)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        files = [npy_rows.RowsOnDisk(tmp_path / f"{i}.npy", np.uint8, (2, 3)) for i in range(150)]
        view = FrameView(files, [np.ones(1, np.bool_)] * 150, n_stacked=1)
        np.testing.assert_array_equal(view[:], images)
        np.testing.assert_array_equal(view[::-1], images[::-1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.atari
def test_what_is_on_disk_or_kept_for_the_next_reader_is_read_only(collected: Path) -> None:
    frames = load_frames(collected)
    for shard in frames._shards:
        assert isinstance(shard["agent"], npy_rows.RowsOnDisk)
        for name in ("agent", "ram", "episode_ids"):
            assert not shard[name][:].flags.writeable
    for array in (frames.ram, frames.episode_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert frames.column("ram").flags.writeable, "fresh for every caller"


@pytest.mark.atari
def test_the_only_view_needs_no_name(collected: Path) -> None:
    frames = load_frames(collected)
    assert frames.observations().shape == frames.labelled().observations.shape == (70, 4, 84, 84)
    assert frames.labelled().provenance["view"] == "agent"


def truncate(folder: Path) -> None:
    file = folder / "shard_00001" / "agent.npy"
    file.write_bytes(file.read_bytes()[:-100])


def flip(folder: Path) -> None:
    file = folder / "shard_00000" / "ram.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def swap(folder: Path) -> None:
    (folder / "shard_00000").rename(folder / "other")
    (folder / "shard_00001").rename(folder / "shard_00000")
    (folder / "other").rename(folder / "shard_00001")


def lose(folder: Path) -> None:
    (folder / "shard_00000" / "lives.npy").unlink()


def edit(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        settings = {**manifest["settings"], **changes.pop("settings", {})}
        (folder / "manifest.json").write_text(
            json.dumps({**manifest, "settings": settings, **changes})
        )

    return change


def write(content: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "manifest.json").write_text(content)

    return change


HASH = "[0-9a-f]{64}"


@pytest.mark.atari
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, rf"shard_00001/agent.npy with 247088 bytes \(SHA-256 {HASH}\), got 246988"),
        (flip, rf"shard_00000/ram.npy with SHA-256 {HASH}, got {HASH}. .* changed"),
        (swap, rf"shard_00000/agent.npy with SHA-256 {HASH}"),
        (lose, r"a file at .*shard_00000/lives.npy, got none. .* Delete .* and collect again"),
        (edit(format_version=2), r"version 1, got .* version 2. Delete .* or collect into another"),
        (edit(format="frames of others"), r"got 'frames of others'"),
        (edit(shards=[]), r"got 0 of 2 shards"),
        (edit(shards=[{"index": 0}] * 2), r"manifest.json to be a manifest"),
        (edit(settings={"views": ["rgb"]}), r"manifest.json to be a manifest"),
        (edit(settings={"game": "../pong"}), r"manifest.json to be a manifest"),
        (write("{"), r"manifest.json to be a manifest"),
        (write("[]"), r"manifest.json to be a manifest"),
        (write("{}"), r"manifest.json to be a manifest"),
        (lambda folder: shutil.rmtree(folder / "shard_00001"), r"shard_00001.* got none"),
    ],
)
def test_damage_is_named(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load_frames(folder)


@pytest.mark.atari
def test_a_size_is_checked_even_without_hashes(folder: Path) -> None:
    flip(folder)
    load_frames(folder, verify=False)
    truncate(folder)
    with pytest.raises(ValueError, match="246988"):
        load_frames(folder, verify=False)


@pytest.mark.atari
def test_files_outside_the_folder_are_not_read(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.zeros(3, np.uint8))
    manifest = read_manifest(folder)
    for name in ("../../secret.npy", "extra.npy"):
        shards = json.loads(json.dumps(manifest["shards"]))
        shards[0]["files"][name] = {"bytes": 131, "sha256": "0" * 64}
        edit(shards=shards)(folder)
        with pytest.raises(ValueError, match="to be a manifest"):
            load_frames(folder)


def test_a_folder_without_frames_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no .*manifest.json. Collect some with"):
        load_frames(tmp_path)


@pytest.mark.atari
@pytest.mark.parametrize(
    ("name", "row", "value"),
    [
        *(("episode_ids", 3, 2), ("episode_ids", 0, 1)),
        *(("game_starts", 0, False), ("game_starts", 3, True)),
    ],
)
def test_episodes_and_games_start_where_they_must(
    folder: Path, name: str, row: int, value: int
) -> None:
    path = folder / "shard_00001" / f"{name}.npy"
    column = np.load(path)
    assert column[row] != value
    column[row] = value
    np.save(path, column)
    with pytest.raises(ValueError, match=rf"in {re.escape(str(path))} to (be|start)"):
        load_frames(folder, verify=False)
