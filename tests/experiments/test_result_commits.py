"""Each published result has a commit, and the page of commits names it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import result_commits

from tests.experiments.loading import RESULTS, study_page


def test_every_result_stands_on_the_page_with_its_commits() -> None:
    rows = re.findall(r"^\| (\S+) \| (.*) \|$", study_page("COMMITS.md"), re.MULTILINE)
    shown = dict(rows[2:])
    found = {str(path.relative_to(RESULTS)) for path in result_commits.results()}
    assert shown.keys() == found
    for path in result_commits.results():
        commits = shown[str(path.relative_to(RESULTS))]
        named = result_commits.named_commits(path)
        if named:
            assert commits == ", ".join(sorted(named))
        else:
            assert re.fullmatch(r"\([0-9a-f]{8}\)", commits), path


def test_commits_are_found_however_deep_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    content = {"runs": [{"git_commit": "a" * 40}, {"git_commit": None}], "git_commit": "b" * 40}
    (tmp_path / "cell" / "run.json").write_text(json.dumps(content))
    (tmp_path / "runs.csv").write_text("arm,git_commit\nbaseline,cccccccccc\n")
    (tmp_path / "other.csv").write_text("arm,return\nbaseline,1\n")
    assert result_commits.named_commits(tmp_path) == {"a" * 8, "b" * 8, "c" * 8}
    assert result_commits.named_commits(tmp_path / "other.csv") == set()


def test_groups_of_studies_are_entered(tmp_path: Path) -> None:
    for folder in ("regimes/one", "theory", "study"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("theory/toy.json", "theory/toy.md", "study/cell.json", "soak.json"):
        (tmp_path / file).write_text("{}")
    found = {str(path.relative_to(tmp_path)) for path in result_commits.results(tmp_path)}
    assert found == {"regimes/one", "theory/toy.json", "study", "soak.json"}


def test_git_knows_the_commit_of_a_result_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def git(command: list[str], **_options: object) -> str:
        asked.append(command)
        return "12345678\n"

    monkeypatch.setattr(subprocess, "check_output", git)
    assert result_commits.words(RESULTS / "contrast_tiles.json") == "(12345678)"
    assert asked[0][:3] == ["git", "log", "-1"]
