"""The benchmark of tiles runs, small and on the CPU."""

import json
from pathlib import Path

import contrast_tiles
import pytest


def test_tiles_of_every_side_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "tiles.json"
    small = ["--device", "cpu", "--sizes", "64", "1024", "--rounds", "1"]
    arguments = ["contrast_tiles.py", *small, "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    contrast_tiles.main()
    found = json.loads(output.read_text())["ms"]
    assert {*found["64"]["symmetric"]} == {"none"}
    assert {*found["1024"]["one way"]} == {"none", "1024"}
    assert all(ms > 0 for entry in found.values() for ms in entry["one way"].values())
    assert "| 64 | one way |" in capsys.readouterr().out


@pytest.mark.parametrize(("ms", "text"), [(None, "-"), (0.4507, "0.451"), (1400.66, "1,401")])
def test_milliseconds_have_three_digits(ms: float | None, text: str) -> None:
    assert contrast_tiles.rounded(ms) == text
