"""What is measured for hours is not lost because the folder of the output is missing."""

from pathlib import Path
from typing import NoReturn

import pytest

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
