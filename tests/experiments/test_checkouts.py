"""Checkouts of commits, and results that are gone on with."""

import json
import subprocess
from pathlib import Path

import checkouts
import pytest


def test_a_commit_is_checked_out_without_what_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setattr(checkouts, "ROOT", work)
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    for text in ("first", "second"):
        (work / "file").write_text(text)
        subprocess.run(["git", "add", "file"], cwd=work, check=True)
        subprocess.run(["git", *identity, "commit", "-q", "-m", text], cwd=work, check=True)
    (work / "file").write_text("third")
    for commit, text in ((checkouts.last_commit(), "second"), ("HEAD~1", "first")):
        assert (checkouts.checked_out(commit, tmp_path / text) / "file").read_text() == text


def test_results_of_one_commit_are_gone_on_with(tmp_path: Path) -> None:
    output = tmp_path / "repeats.json"
    assert checkouts.read_results(output, "a") == {"git_commit": "a"}
    found = {"git_commit": "a", "repeats": [{"study": "sac_features_plain"}]}
    output.write_text(json.dumps(found))
    assert checkouts.read_results(output, "a") == found
    with pytest.raises(ValueError, match=r"results of b in .*, got those of a\. Move that file"):
        checkouts.read_results(output, "b")
