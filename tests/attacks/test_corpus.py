"""Hundreds of damaged files of every format: each is refused by name, or cannot be told apart.

What a format lets through depends on its checksums:

* `model.zip`: CRC-32 of every member, so that weights and settings are read as they were or not at
  all. Dates in its headers, bytes around it and members that nobody reads may change.
* Run checkpoints: SHA-256 of every file, of the manifest, too. Nothing passes.
* Frames: SHA-256 of every array. Manifests hold them, and some facts that nothing contradicts.
* `run.json`: SHA-256 of the arguments alone.
* `.safetensors` (encoders, pretraining): none. A flipped bit of a weight is another weight.
* `scores.json`: none. `progress.csv`: none, and lines that are not whole are dropped by design.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.runs.checkpoints import checkpoints, latest_checkpoint
from tests.attacks.damages import Damage, damages
from tests.attacks.formats import FORMATS, good_files, is_of_the_newest, read_run, small_dqn

MAY_PASS: dict[str, set[str]] = {
    "model": {"flip", "longer", "inserted"},
    "encoder": {"flip"},
    "pretraining": {"flip"},
    "record": {"flip", "longer", "cut"},
    "log": {"cut", "flip", "longer", "inserted", "gone"},
    "frames": {"flip", "longer"},
    "scores": {"flip", "longer", "cut", "gone"},
}
"""Kinds of damage that are not always noticed; what is read must have the same structure then.

"longer" of JSON is a blank at its end, "cut" the newline there. What has no log and no scores yet
begins with new ones.
"""


def all_damages(name: str, places: dict[str, Path]) -> list[Damage]:
    files = good_files(name, places[name])
    other = "encoder" if name != "encoder" else "record"
    (foreign,) = good_files(other, places[other]).values()
    if name == "run":  # of the newest checkpoint alone
        files = {file: files[file] for file in files if is_of_the_newest(file, places[name])}
    return list(damages(files, foreign))


@contextlib.contextmanager
def inflicted(damage: Damage, folder: Path, files: dict[str, bytes]) -> Iterator[None]:
    for name, content in damage.changed.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
    try:
        yield
    finally:
        for name in damage.changed:
            (folder / name).write_bytes(files[name])


def is_named(damage: Damage, folder: Path, message: str) -> bool:
    """Return whether a file that was changed is named; a manifest may speak of its folder."""
    names = [Path(name).name for name in damage.changed]
    is_manifest = any("manifest" in name.lower() for name in names)
    return str(folder) in message and (is_manifest or any(name in message for name in names))


def complaint(name: str, damage: Damage, folder: Path, good: Any) -> str | None:
    """Return what is wrong with how a damage was met."""
    format_ = FORMATS[name]
    try:
        found = format_.read(folder)
    except (format_.error, format_.of_nothing) as error:
        return None if is_named(damage, folder, str(error)) else f"nothing is named: {error}"
    except Exception as error:  # noqa: BLE001 (any other one is what is looked for)
        return f"{error!r}"
    if damage.kind not in MAY_PASS.get(name, set()):
        return "not noticed"
    is_as_good = found == good or damage.kind == "gone"
    return None if is_as_good else f"read as {found}"


@pytest.mark.parametrize("name", FORMATS)
def test_every_damage_is_named_or_changes_no_structure(
    name: str, places: dict[str, Path], copied: Callable[[str], Path]
) -> None:
    folder, files = copied(name), good_files(name, places[name])
    good = FORMATS[name].read(folder)
    complaints = {}
    for damage in all_damages(name, places):
        with inflicted(damage, folder, files):
            found = complaint(name, damage, folder, good)
        if found is not None:
            complaints[damage.kind, damage.where] = found.replace(str(folder), "")
    assert not complaints, f"{len(complaints)}: {list(complaints.items())[:9]}"
    assert FORMATS[name].read(folder) == good, "a damage was not mended, and this test shows less"


@pytest.mark.thorough
def test_the_checkpoint_before_is_taken_whatever_was_damaged(
    places: dict[str, Path], copied: Callable[[str], Path]
) -> None:
    folder, files = copied("run"), good_files("run", places["run"])
    newest, former = checkpoints(folder)
    for n_damages, damage in enumerate(all_damages("run", places)):
        with inflicted(damage, folder, files):
            assert latest_checkpoint(folder, fall_back=True).path == former, damage[:2]
            if n_damages % 20 == 0:
                n_steps, _ = read_run(folder, fall_back=True)
                assert newest.name > f"step_{n_steps:012d}" == former.name
    for file in former.iterdir():
        file.write_bytes(b"")
        assert latest_checkpoint(folder).path == newest, "others' damage does not matter"


def test_a_checkpoint_that_was_passed_over_does_not_push_out_the_next_one(tmp_path: Path) -> None:
    small_dqn().learn(24, callback=ResumeCallback(tmp_path, save_freq=10))
    newest, former = checkpoints(tmp_path)
    (newest / "state.json").write_bytes(b"")
    model, run = small_dqn(), ResumeCallback(tmp_path, save_freq=4, n_kept=1)
    assert run.restore(model, fall_back=True)
    model.learn(8, callback=run, reset_num_timesteps=False)
    assert latest_checkpoint(tmp_path, fall_back=True).step == model.num_timesteps < 24
    assert not former.exists()


def test_the_corpus_is_large_and_always_the_same(places: dict[str, Path]) -> None:
    sizes = {name: len(all_damages(name, places)) for name in FORMATS}
    assert min(sizes.values()) >= 50
    assert sum(sizes.values()) >= 500
    assert [d.where for d in all_damages("log", places)] == [
        d.where for d in all_damages("log", places)
    ]
    kinds = {damage.kind for name in FORMATS for damage in all_damages(name, places)}
    assert kinds == {"cut", "flip", "longer", "inserted", "gone", "foreign", "swapped"}
