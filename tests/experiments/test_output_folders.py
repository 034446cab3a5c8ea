"""What is measured for hours is not lost because the folder of the output is missing."""

import json
from pathlib import Path
from typing import NoReturn

import pytest
from output import finish

from tests.experiments.loading import load


@pytest.mark.parametrize(
    ("script", "measures"),
    [
        ("distributed.py", "compare"),
        ("fuzz.py", "fuzz_in_process"),
        ("kills.py", "start"),
        ("moving_dot.py", "measure"),
        ("soak.py", "soak"),
    ],
)
def test_the_folder_of_the_output_is_made_before_anything_is_measured(
    script: str, measures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "new" / "folder" / "found.json"

    def stop(*_given: object) -> NoReturn:
        assert output.parent.is_dir()
        raise KeyboardInterrupt

    module = load(script)
    monkeypatch.setattr(module, measures, stop)
    monkeypatch.setattr("sys.argv", [script, "--output", str(output)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        module.main()


def test_a_benchmark_ends_with_its_tables_and_a_file_in_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "found.json"
    for given in (None, output):
        finish({"speed": 2}, given, "| a |", "| b |")
        assert capsys.readouterr().out == "| a |\n\n| b |\n"
    assert json.loads(output.read_text()) == {"speed": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
