"""A table that goes on where its run does."""

from pathlib import Path

import pytest

from rl_infonce.files.csv_log import CSVLog


def test_rows_and_columns_are_added_and_later_ones_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    log = CSVLog(path, last_step=0)
    log.append(1, {"a": 1.5})
    log.append(2, {"a": 2.5, "b": "x, y"})
    log.append(3, {"b": 'say "z"'})
    assert path.read_text() == 'step,a,b\n1,1.5,\n2,2.5,"x, y"\n3,,"say ""z"""\n'
    log.close()
    log = CSVLog(path, last_step=2)  # killed after 3, resumed at 2
    log.append(3, {"c": 7})
    log.close()
    assert path.read_text() == 'step,a,b,c\n1,1.5,,\n2,2.5,"x, y",\n3,,,7\n'


def test_what_the_disk_refused_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    log = CSVLog(path, last_step=0)
    log.append(1, {"a": 1.5})
    log._file.write("2,2.5\n")  # a row whose flush failed
    log.abandon()
    assert path.read_text() == "step,a\n1,1.5\n"


@pytest.mark.parametrize("torn", ["2", "2,4", "2,4,0.12", '2,4,"x'])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "progress.csv"
    path.write_text(f"step,a,b\n1,2,3\n{torn}")
    CSVLog(path, last_step=9).close()
    assert path.read_text() == "step,a,b\n1,2,3\n"


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("time,a\n1,2\n")
    with pytest.raises(ValueError, match=r"the columns 'time,a'. Move that file away"):
        CSVLog(path, last_step=9)
    assert path.read_text() == "time,a\n1,2\n"
