"""A file of scores that is none is named, whatever its numbers are."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.scoring.scores_file import read_scores
from tests.attacks.formats import write_scores


@pytest.mark.parametrize("f1", ["nan", "0.5", float("nan"), 10**400, 1e308, None, True])
@pytest.mark.parametrize("where", ["mean", "categories", "variables"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, f1: Any, where: str) -> None:
    write_scores(tmp_path)
    path = tmp_path / "scores.json"
    content = json.loads(path.read_text())
    for cell in content["cells"][:2]:
        scores = cell["scores"][where]
        (scores if where == "mean" else next(iter(scores.values())))["f1_weighted"] = f1
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"scores.json to hold scores of `rl-infonce probe`"):
        read_scores(path)
