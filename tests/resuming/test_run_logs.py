"""Logs of a run whose disk is full for a while have every row in the end."""

import csv
import errno
import sys
import threading
import warnings
from pathlib import Path

import pytest
from stable_baselines3.common.logger import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce.files import durable
from rl_infonce.resuming.run_logs import CSVFormat, run_logger
from tests.full_disk import full_disk

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")


@pytest.fixture(autouse=True)
def quiet_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's thread dies of a full disk, and tells those who ask it."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)


def new_logger(folder: Path) -> Logger:
    return run_logger(folder, folder / "tb", first_step=0, goes_on=False, on_screen=False)


def log(logger: Logger, step: int, **numbers: float) -> None:
    logger.record("time/step", step)
    logger.record("time/again", step)
    for name, value in numbers.items():
        logger.record(name, value)
    logger.dump(step)


def csv_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder / "tb"), {"scalars": 0})
    accumulator.Reload()
    return sorted({(each.step, each.value) for each in accumulator.Scalars(tag)})


@pytest.mark.parametrize("new_column", [False, True])
def test_rows_wait_for_room(tmp_path: Path, new_column: bool) -> None:
    logger = new_logger(tmp_path)
    for step in range(1, 41):
        log(logger, step)
    more = {"loss": 0.5} if new_column else {}
    with full_disk(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(41, 81):
            log(logger, step, **more)
    named = [str(each.message) for each in caught if each.category is RuntimeWarning]
    assert len(named) == 2, "once for each file"
    assert f"TensorBoard's log in {tmp_path / 'tb'} was not written: [Errno" in named[0]
    assert f"{tmp_path / 'progress.csv'} was not written: [Errno" in named[1]
    assert len(list((tmp_path / "tb").iterdir())) == 1, "no file for every row"
    log(logger, 81)
    logger.close()
    rows = csv_rows(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(1, 82))
    assert [row["time/step"] for row in rows] == [row["step"] for row in rows]
    assert curve(tmp_path, "time/step") == [(step, step) for step in range(1, 82)]
    if new_column:
        assert [row["loss"] for row in rows] == [""] * 40 + ["0.5"] * 40 + [""]
        assert len(curve(tmp_path, "loss")) == 40


def test_what_is_lost_in_the_end_is_named(tmp_path: Path) -> None:
    logger = new_logger(tmp_path)
    log(logger, 1)
    with full_disk(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (2, 3):
            log(logger, step)
        logger.close()
    named = [str(each.message) for each in caught if each.category is RuntimeWarning]
    assert f"TensorBoard's log in {tmp_path / 'tb'} may lack its last 3 rows" in " ".join(named)
    assert f"{tmp_path / 'progress.csv'} may lack its last 2 rows" in " ".join(named)
    assert csv_rows(tmp_path)[0]["time/step"] == "1"


def test_a_disk_that_refuses_what_a_checkpoint_waits_for_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CSVFormat(tmp_path / "episodes.csv", 0)
    table.write({"return": 1.0}, {}, 1)
    fsync = durable._fsync

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "_fsync", refuse)
    with pytest.warns(RuntimeWarning, match=r"episodes\.csv was not written: .*Input/output error"):
        table.sync()
    table.write({"return": 2.0}, {}, 2)
    monkeypatch.setattr(durable, "_fsync", fsync)
    table.sync()
    table.close()
    assert (tmp_path / "episodes.csv").read_text() == "step,return\n1,1.0\n2,2.0\n"
