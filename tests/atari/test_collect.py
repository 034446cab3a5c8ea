import errno
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from loky import ProcessPoolExecutor
from torch import nn
from tqdm import tqdm

from rl_infonce.atari import (
    LabelledFrames,
    collect,
    emulator,
    load_frames,
    make_atari_vec_env,
    random_play,
    shard_player,
    shards,
)
from rl_infonce.atari.collection import Collection
from tests.full_disk import no_room
from tests.further import further

pytestmark = pytest.mark.atari

Array = npt.NDArray[Any]


def small(folder: Path, **settings: Any) -> LabelledFrames:
    """Collect little, in a game whose lives are lost soon."""
    given: dict[str, Any] = {"game": "breakout", "n_steps": 101, "n_shards": 3, **settings}
    return collect(given.pop("game"), given.pop("n_steps"), folder=folder, **given)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def machine_seed(seed: int, shard: int) -> int:
    """Return the emulator's seed, as `ShardPlayer` promises to derive it."""
    child = np.random.SeedSequence(seed, spawn_key=(shard,)).spawn(3)[0]
    return int(np.random.default_rng(child).integers(2**31))


def is_lit(
    frames: LabelledFrames, rows: Array, tops: Array, lefts: Array, size: tuple[int, int]
) -> Array:
    """Return for each row whether the rectangle [top, left, height, width] has no background."""
    height, width = size
    screens = frames.observations("screen")[rows][:, 0]
    background = np.bincount(screens[:, 100:180].ravel()).argmax()
    y = tops[:, None, None] + np.arange(height)[:, None]
    x = lefts[:, None, None] + np.arange(width)
    lit: Array = (screens[np.arange(len(rows))[:, None, None], y, x] != background).all((1, 2))
    return lit


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    small(folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """Return a finished folder that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> LabelledFrames:
    return collect("breakout", 900, folder=tmp_path_factory.mktemp("breakout"), n_shards=2)


# Where RAM and pixels agree: the image is the maximum of the last two frames, so what RAM says of
# the last one must be lit in it. The constants were found by search; a single wrong row fails.


def test_ram_and_screen_are_of_one_instant_at_every_life_and_game(breakout: LabelledFrames) -> None:
    paddle = breakout.ram[:, 72].astype(int) - 47
    starts = np.diff(breakout.episode_ids, prepend=-1) != 0
    rows = np.flatnonzero((paddle >= 8) & (paddle < 136))
    tops = np.full(len(breakout), 189)
    assert starts[rows].sum() > 15
    assert breakout.column("game_starts").sum() > 3
    assert is_lit(breakout, rows, tops[rows], paddle[rows], (4, 16)).all()
    earlier = rows[(rows > 0) & starts[rows]] - 1  # the labels that the published code would give
    earlier = earlier[(paddle[earlier] >= 8) & (paddle[earlier] < 136)]
    assert is_lit(breakout, earlier + 1, tops[earlier], paddle[earlier], (4, 16)).mean() < 0.5


def test_pong_paddle_and_ball_are_where_ram_says_and_only_then(tmp_path: Path) -> None:
    pong = collect("pong", 900, folder=tmp_path, n_shards=2)
    for shift in (0, 1, -1):
        ram = np.roll(pong.ram, shift, axis=0).astype(int)
        ball_x, ball_y, enemy = ram[:, 49] - 49, ram[:, 54] - 13, ram[:, 50] - 15
        is_ball_in_play = (ram[:, 54] > 0) & (ball_x > 21) & (ball_x < 136)
        rows = np.flatnonzero(is_ball_in_play & (ball_y >= 36) & (ball_y < 188))
        found = is_lit(pong, rows, ball_y[rows], ball_x[rows], (1, 1)).mean()
        rows = np.flatnonzero((enemy >= 34) & (enemy < 178))
        found_enemy = is_lit(pong, rows, enemy[rows], np.full(len(rows), 16), (16, 4)).mean()
        assert len(rows) > 500
        if shift == 0:
            assert found == found_enemy == 1.0
        else:
            assert max(found, found_enemy) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "n_steps"),
    [
        ("breakout", 400),
        further("space_invaders", 500),
        ("pong", 300),
        further("seaquest", 400),
    ],
)
def test_agent_view_is_bit_for_bit_that_of_the_vector_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, game: str, n_steps: int
) -> None:
    monkeypatch.setattr(shard_player, "NOOP_MAX", 1)  # both draw idle frames, from other generators
    frames = collect(game, n_steps, folder=tmp_path, n_shards=1, seed=5)
    env = make_atari_vec_env(game, 1, seed=machine_seed(5, 0), noop_max=1, clip_reward=False)
    stacks, actions = frames.observations("agent"), frames.column("actions")
    rewards, episode_ids = frames.column("rewards"), frames.episode_ids
    observation: Any = env.reset()
    n_dones = 0
    for row in range(n_steps - 1):
        np.testing.assert_array_equal(observation[0], stacks[row])
        observation, reward, dones, infos = env.step(actions[row : row + 1].astype(np.int64))
        assert reward[0] == rewards[row]
        assert dones[0] == (episode_ids[row + 1] != episode_ids[row])
        assert ("episode" in infos[0]) == frames.column("game_starts")[row + 1]
        n_dones += int(dones[0])
    assert n_dones > 0 or game == "pong"


def test_a_game_cut_off_after_its_frames_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "MAX_FRAMES_PER_GAME", 42)
    frames = small(tmp_path, game="pong", n_steps=30, n_shards=1)
    assert np.flatnonzero(frames.column("game_starts")).tolist() == [0, 11, 22]  # ceil(42 / 4)
    assert np.unique(frames.episode_ids).tolist() == [0, 11, 22]


def test_both_views_are_of_one_state(breakout: LabelledFrames) -> None:
    screens, stacks = breakout.observations("screen")[:300], breakout.observations("agent")[:300]
    for screen, stack in zip(screens, stacks, strict=True):
        resized = cv2.resize(screen[0], (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(resized, stack[-1])


def test_rows_are_distributed_and_episodes_named_by_their_first_row(
    breakout: LabelledFrames, tmp_path: Path
) -> None:
    frames = small(tmp_path)
    assert [shard["rows"] for shard in frames.manifest["shards"]] == [34, 34, 33]
    assert len(frames) == len(frames.ram) == len(frames.episode_ids) == 101
    assert {0, 34, 68} <= set(frames.episode_ids.tolist())
    ids, lives = breakout.episode_ids, breakout.column("lives").astype(int)
    starts, games = np.diff(ids, prepend=-1) != 0, breakout.column("game_starts")
    np.testing.assert_array_equal(ids[starts], np.flatnonzero(starts))
    np.testing.assert_array_equal(starts, games | (np.diff(lives, prepend=9) < 0))
    assert (lives[games] == 5).all()
    np.testing.assert_array_equal(np.diff(breakout.game_ids, prepend=-1) != 0, games)
    np.testing.assert_array_equal(breakout.game_ids[games], np.flatnonzero(games))
    labelled = breakout.labelled("agent")
    np.testing.assert_array_equal(labelled.group_ids, breakout.game_ids)


def test_a_last_life_that_is_counted_as_0_goes_on(tmp_path: Path) -> None:
    frogger = collect("frogger", 320, folder=tmp_path / "frogger", n_shards=1)
    ids, lives = frogger.episode_ids, frogger.column("lives").astype(int)
    to_0 = np.flatnonzero((lives[1:] == 0) & (lives[:-1] == 1)) + 1
    assert len(to_0) > 0
    np.testing.assert_array_equal(ids[to_0], ids[to_0 - 1])


def seeded_by_image(n_actions: int) -> Callable[[Array], Array]:
    """Return a stateless policy that depends on every pixel."""

    def policy(stacks: Array) -> Array:
        actions: Array = stacks.reshape(len(stacks), -1).sum(1, dtype=np.int64) % n_actions
        return actions

    return policy


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "random_without_noop"])
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, policy: Any) -> None:
    for n_workers in (1, 3):
        small(tmp_path / str(n_workers), policy=policy, n_workers=n_workers, n_steps=60)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert contents(tmp_path / "1") != {}


def test_seeds_and_shards_differ(tmp_path: Path) -> None:
    frames = [small(tmp_path / str(seed), seed=seed, n_shards=2, n_steps=60) for seed in (0, 1)]
    for name in ("actions.npy", "screen.npy"):
        hashes = {shard["files"][name]["sha256"] for f in frames for shard in f.manifest["shards"]}
        assert len(hashes) == 4


def test_random_policies_are_uniform_with_and_without_noop(tmp_path: Path) -> None:
    for policy, expected in (("random", 4), ("random_without_noop", 3)):
        frames = small(tmp_path / policy, policy=policy, n_steps=600, n_shards=1)
        counts = np.bincount(frames.column("actions"), minlength=4)
        assert (counts > 0).sum() == expected
        assert abs(counts[-3:] / 600 - 1 / expected).max() < 0.07  # 3.6 standard deviations
    assert counts[0] == 0
    assert frames.manifest["settings"]["actions"][0] == "NOOP"


def test_a_game_whose_first_action_is_no_noop_keeps_it(tmp_path: Path) -> None:
    frames = small(tmp_path, game="video_checkers", policy="random_without_noop", n_shards=1)
    assert "NOOP" not in frames.manifest["settings"]["actions"]
    assert (frames.column("actions") == 0).any()


def test_a_function_sees_what_is_recorded_in_lockstep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "MAX_FRAMES_PER_GAME", 42)
    seen: list[Array] = []

    def policy(stacks: Array) -> list[int]:
        seen.append(stacks)
        return [row % 4 for row in range(len(seen), len(seen) + len(stacks))]

    frames = small(tmp_path, policy=policy, policy_name="counting", views=["agent"])
    assert frames.manifest["settings"]["policy"] == "counting"
    stacks, actions = frames.observations("agent"), frames.column("actions")
    assert frames.column("game_starts").sum() > 6
    assert len(seen) == 34
    for step, observations in enumerate(seen):
        rows = [first + step for first in (0, 34, 68) if first + step < 101]
        np.testing.assert_array_equal(observations[: len(rows)], stacks[rows])
        assert actions[rows].tolist() == [(step + 1 + i) % 4 for i in range(len(rows))]


def first_action(stacks: Array) -> Array:
    return np.zeros(len(stacks), np.int64)


def test_a_function_works_where_only_screens_are_kept(tmp_path: Path) -> None:
    given: dict[str, Any] = {"policy": seeded_by_image(4), "policy_name": "seeded", "n_shards": 1}
    both = small(tmp_path / "both", **given)
    screens = small(tmp_path / "screens", **given, views=["screen"])
    np.testing.assert_array_equal(both.column("actions"), screens.column("actions"))


class StoppedError(Exception):
    pass


def stop_after(n_shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulators fail as soon as some shards are finished."""
    finish = Collection.finish
    finished: list[int] = []

    def finish_or_fail(self: Collection, entry: dict[str, Any]) -> None:
        if len(finished) == n_shards:
            raise StoppedError
        finish(self, entry)
        finished.append(entry["index"])

    monkeypatch.setattr(Collection, "finish", finish_or_fail)


def test_an_interrupted_collection_is_completed_to_the_same_bytes(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "halves"
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(StoppedError):
            small(folder, n_workers=2)
    assert not list(folder.rglob("*.partial"))
    (listed,) = json.loads((folder / "manifest.json").read_text())["shards"]
    kept = folder / f"shard_{listed['index']:05d}"
    with pytest.raises(ValueError, match=r"got 1 of 3 shards. Collect again with the same"):
        load_frames(folder)
    before = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    small(folder)
    assert {path: path.stat().st_mtime_ns for path in kept.iterdir()} == before
    assert contents(folder) == contents(finished)


def test_a_killed_worker_ends_the_collection_and_leaves_no_half_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = ProcessPoolExecutor.submit

    def submit_killer(self: Any, play: Any, index: int) -> Any:
        return submit(self, os._exit, 1) if index == 2 else submit(self, play, index)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPoolExecutor, "submit", submit_killer)
        with pytest.raises(ChildProcessError, match=r"killed, perhaps for want of memory"):
            small(tmp_path, n_workers=2, n_steps=3000)
    assert not list(tmp_path.rglob("*.partial"))
    assert len(small(tmp_path, n_steps=3000)) == 3000


def test_what_succeeded_is_listed_before_a_failure_is_raised() -> None:
    finished: list[Any] = []
    shown: list[int] = []
    collection: Any = SimpleNamespace(finish=finished.append)
    futures: list[Future[Any]] = [Future() for _ in range(9)]
    for index, future in enumerate(futures):
        if index == 4:
            future.set_exception(StoppedError())
        else:
            future.set_result({"index": index, "rows": 10 + index})
    with pytest.raises(StoppedError):
        random_play._wait(collection, futures, shown.append)
    assert sorted(entry["index"] for entry in finished) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert shown == [entry["rows"] for entry in finished]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX signals")
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = (
        "from rl_infonce.atari import collect\n"
        f"collect('pong', 60_000, folder={str(tmp_path)!r}, n_shards=2, n_workers=2)"
    )
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as parent:
        wait_until(lambda: len(list(tmp_path.glob("*.partial/ram.npy"))) == 2)
        parent.kill()
    time.sleep(1)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*")]
    time.sleep(1)  # in which a player that lives writes a thousand rows
    assert [path.stat().st_size for path in tmp_path.rglob("*")] == sizes


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_worker_on_windows_asks_the_sentinel_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    parent = SimpleNamespace(sentinel=7, is_alive=lambda: is_alive)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    assert random_play._is_orphan(os.getppid()) == (not is_alive)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.thorough
def test_the_bar_follows_the_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(tmp_path, n_steps=3000, n_workers=2, progress=True)
    shown = [int(n) for n in re.findall(r"(\d+)/3000", capsys.readouterr().err)]
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert any(0 < n < 3000 for n in shown)
    assert shown[-1] == 3000


def test_the_bar_of_a_function_counts_no_ended_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    monkeypatch.setattr(tqdm, "update", lambda _bar, n: shown.append(n))
    small(tmp_path, policy=first_action, policy_name="first action", n_steps=8, n_shards=3)
    assert shown == [3, 3, 2]


def test_what_a_killed_process_left_is_replaced(
    finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"] = manifest["shards"][:1]
    (folder / "manifest.json").write_text(json.dumps(manifest))  # shard 1 was moved, not listed
    (folder / "shard_00002").rename(folder / "shard_00002.partial")
    (folder / "shard_00001" / "ram.npy").write_bytes(b"half")
    usage = shutil.disk_usage
    left: list[Path] = []

    def look(path: Path) -> Any:
        left.extend(folder.glob("shard_*"))
        return usage(path)

    monkeypatch.setattr(shutil, "disk_usage", look)
    small(folder)
    assert left == [folder / "shard_00000"], "takes space that is counted as missing"
    assert contents(folder) == contents(finished)


def test_a_lost_shard_is_played_again(finished: Path, copied: Path) -> None:
    shutil.rmtree(copied / "shard_00001")
    small(copied)
    assert contents(copied) == contents(finished)


def test_foreign_files_under_our_names_are_never_deleted(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["shards"] = []
    (copied / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(copied / "shard_00000")
    precious = [copied / "shard_00001" / name for name in ("thesis.txt", "ram.npy")]
    for file in precious:
        file.write_text("years of work")
    with pytest.raises(OSError, match=r"in .*shard_00001, got \['thesis.txt'\]. Move them"):
        small(copied)
    assert [file.read_text() for file in precious] == ["years of work"] * 2
    assert not (copied / "shard_00000").exists(), "played before it was looked at"


def test_shards_that_nothing_describes_are_never_deleted(finished: Path, copied: Path) -> None:
    (copied / "manifest.json").unlink()
    before = sorted(path.name for path in copied.iterdir())
    with pytest.raises(ValueError, match=r"a manifest\.json beside .* got shard_00000 without one"):
        small(copied)
    assert sorted(path.name for path in copied.iterdir()) == before
    shutil.copy(finished / "manifest.json", copied)
    small(copied)
    assert contents(copied) == contents(finished)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed=0 (not 1)"),
        ({"n_steps": 102, "policy": "random_without_noop"}, "policy='random' (not 'random_without"),
        ({"views": ["agent"]}, "views=['screen', 'agent'] (not ['agent'])"),
        ({"game": "pong"}, "game='breakout' (not 'pong')"),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_what_differs(
    finished: Path, copied: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        small(copied, **change)
    assert contents(copied) == contents(finished)


def test_too_small_a_disk_is_refused_before_playing(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"bytes free for .*, got 1,000") as caught:
        small(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    needed = int(re.findall(r"Expected ([\d,]+) bytes", str(caught.value))[0].replace(",", ""))
    assert needed == sum(path.stat().st_size for path in finished.glob("shard_*/*"))
    assert not list(tmp_path.glob("shard_*"))


def fill_disk(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[int, str, int], bool]) -> None:
    """Let there be no room as soon as a shard, a column and the bytes written so far say so."""
    written, original = 0, shards.ShardWriter._write

    def write(self: shards.ShardWriter, name: str, content: bytes | memoryview) -> None:
        nonlocal written
        written += len(content)
        if is_full(self.index, name, written):
            no_room()
        original(self, name, content)

    monkeypatch.setattr(shards.ShardWriter, "_write", write)


@pytest.mark.parametrize("policy", ["random", seeded_by_image(4)])
def test_a_disk_that_fills_up_keeps_finished_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    given = {"policy": policy, "policy_name": None if policy == "random" else "seeded"}
    with monkeypatch.context() as patch:
        fill_disk(patch, lambda shard, _, written: shard == 2 and written > 3_000_000)
        with pytest.raises(OSError, match="the disk is full") as caught:
            small(tmp_path, n_workers=1, **given)
    n_kept = 2 if policy == "random" else 0  # in lock-step all end together
    assert f"{n_kept} of 3 shards are finished and kept" in str(caught.value)
    assert len(list(tmp_path.glob("shard_*"))) == n_kept
    assert len(small(tmp_path, **given)) == 101


@pytest.mark.parametrize(
    "given", [{"policy": "random"}, {"policy": first_action, "policy_name": "first action"}]
)
def test_a_disk_that_is_full_at_the_start_of_a_shard_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    fill_disk(monkeypatch, lambda shard, name, _: shard == 1 and name == "ram")
    with pytest.raises(OSError, match="the disk is full"):
        small(tmp_path, n_workers=1, n_steps=6, **given)
    assert not list(tmp_path.glob("*.partial"))


def test_writers_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"n_steps": 20, "n_shards": 1}
    threads = [threading.Thread(target=small, args=(tmp_path,), kwargs=arguments) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_frames(tmp_path)) == 20


def test_a_finished_folder_is_read_without_the_writers_lock_and_not_if_it_is_damaged(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / ".lock").unlink(missing_ok=True)
    monkeypatch.setattr(Collection, "opened", None)
    assert len(small(copied)) == 101
    assert not (copied / ".lock").exists()
    flipped = bytearray((copied / "shard_00001" / "ram.npy").read_bytes())
    flipped[-1] ^= 1
    (copied / "shard_00001" / "ram.npy").write_bytes(flipped)
    with pytest.raises(ValueError, match=r"shard_00001/ram.npy with SHA-256 [0-9a-f]{64}"):
        small(copied)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_finished_folder_needs_no_permission_to_write(copied: Path) -> None:
    copied.chmod(0o500)
    try:
        assert len(small(copied)) == 101
    finally:
        copied.chmod(0o700)


def test_games_without_labels_are_collected_and_not_labelled(tmp_path: Path) -> None:
    frames = small(tmp_path, game="tetris", n_steps=6, n_shards=1)
    with pytest.raises(
        ValueError, match=r"RAM labels .* got 'tetris'. The labelled games are asteroids"
    ):
        frames.labelled()


def answer(value: Any, **attributes: Any) -> Callable[[Array], Any]:
    def policy(_stacks: Array) -> Any:
        return value

    vars(policy).update(attributes)
    return policy


def played_by(policy: Callable[[Array], Any]) -> dict[str, Any]:
    return {"policy": policy, "policy_name": "answer", "n_shards": 1}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"game": "pnog"}, ValueError, "Did you mean 'pong'"),
        ({"n_steps": 2}, ValueError, "one step per shard (n_shards=3), got 2. Pass fewer `n"),
        ({"n_steps": 0}, ValueError, "Expected `n_steps`"),
        ({"n_steps": 9.5}, TypeError, "Expected `n_steps` to be an integer"),
        ({"n_shards": 0}, ValueError, "Expected `n_shards`"),
        ({"seed": -1}, ValueError, "Expected `seed`"),
        ({"n_workers": 0}, ValueError, "Expected `n_workers`"),
        ({"progress": "no"}, TypeError, "Expected `progress` to be True or False"),
        ({"views": "agent"}, ValueError, "Expected `views` to be distinct names"),
        ({"views": []}, ValueError, "Expected `views`"),
        ({"views": 5}, TypeError, "Expected `views` to be a list of names"),
        ({"views": [["agent"]]}, TypeError, "Expected `views` to be a list of names"),
        ({"views": (view for view in ["agent"])}, TypeError, "Expected `views` to be a list"),
        ({"views": ["rgb"]}, ValueError, "Expected `views` to be one of"),
        ({"policy": "greedy"}, ValueError, "Expected `policy` to be one of"),
        ({"policy": 3}, TypeError, "or a function of observations, got int"),
        ({"policy": "random", "policy_name": "x"}, ValueError, "Expected no `policy_name`"),
        (played_by(answer([0, 1])), ValueError, "of shape (1,), got (2,)"),
        (played_by(answer([1.0])), TypeError, "of `policy` to be integers, got dtype fl"),
        (played_by(answer([4])), ValueError, "actions of `policy` in 0..3, got [4]"),
        (played_by(answer([-1])), ValueError, "actions of `policy` in 0..3, got [-1]"),
        (played_by(answer(([0], None))), TypeError, "got a tuple"),
        (
            played_by(answer([0], n_actions=6)),
            ValueError,
            "the 4 actions of breakout, got one with 6: the policy was trained on another game, or "
            "with full_action_space=True.",
        ),
        (
            played_by(answer([0], image_shape=(2, 84, 84))),
            ValueError,
            "of images of shape (4, 84, 84), as make_atari_vec_env gives them, got (2, 84, 84)",
        ),
        ({"policy": answer([0]), "policy_name": "random"}, ValueError, "a name other than"),
        ({"policy": answer([0]), "policy_name": " "}, ValueError, "a name other than"),
        ({"policy": first_action}, TypeError, "decides the actions of `policy`, got None"),
        ({"policy": answer([0]), "policy_name": 3}, TypeError, "`policy_name` to be a str that"),
        ({"policy": nn.Linear(1, 1)}, TypeError, "got Linear. For an SB3 model"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        small(tmp_path / "new", **arguments)
    assert not list((tmp_path / "new").glob("shard*"))


@pytest.mark.parametrize("folder", [None, 3, b"frames"])
def test_a_folder_that_is_no_path_is_named(folder: Any) -> None:
    for read in (small, load_frames):
        with pytest.raises(TypeError, match="Expected `folder` to be a path, got"):
            read(folder)


def test_a_folder_below_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    collected = small(Path("~/frames"), n_steps=2, n_shards=1)
    assert (tmp_path / "frames" / "manifest.json").is_file()
    assert load_frames("~/frames").frames_hash == collected.frames_hash
