"""Coverage-guided fuzzing, where atheris installs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.loading import EXPERIMENTS, load

FAULTY = """
import sys
sys.argv = ["fuzz.py", "--format", "record", "--minutes", "0.2", "--crashes", sys.argv[1]]
import json
from rl_infonce.runs import run_directory
read = run_directory.read_record
def faulty(folder):
    if b"\\0" in (folder / "run.json").read_bytes():
        raise KeyError("undocumented")
    return read(folder)
run_directory.read_record = faulty
import runpy
runpy.run_path({script!r}, run_name="__main__")
"""


def test_every_format_is_fuzzed() -> None:
    from tests.attacks.formats import FORMATS

    assert tuple(FORMATS) == load("fuzz.py").FORMATS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_error_that_is_not_documented_is_found_and_its_input_kept(tmp_path: Path) -> None:
    pytest.importorskip("atheris", exc_type=ImportError)
    script = FAULTY.format(script=str(EXPERIMENTS / "fuzz.py"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "KeyError: 'undocumented'" in done.stdout + done.stderr
    assert list(tmp_path.glob("record-crash-*"))


def test_the_counts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = load("fuzz.py")
    said = "#2 INITED cov: 3 ft: 3\n#9 DONE cov: 42 ft: 9\nstat::number_of_executed_units: 1234\n"
    said += "stat::peak_rss_mb:             512\n"
    monkeypatch.setattr(
        fuzz.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", said)
    )
    found = fuzz.fuzz_in_process("record", 1, tmp_path)
    assert found == {"is_clean": True, "inputs": 1234, "peak_mb": 512, "branches": 42}
    assert "| record | 1,234 | 42 | 0 |" in fuzz.table({"record": found})
