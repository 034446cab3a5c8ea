"""The page of versions says what was installed and what the tests said."""

import re

from tests.experiments.loading import RESULTS, study_page

PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "ale-py", "numpy")
FOLDER = RESULTS / "versions"


def test_the_page_holds_the_counts_and_versions() -> None:
    page = study_page("versions/README.md")
    lines = (FOLDER / "counts.txt").read_text().splitlines()
    assert len(lines) == 8, "four Pythons, lowest and newest"
    for line in lines:
        name, _, counts = line.partition(": ")
        python, kind = name.split()
        frozen = (FOLDER / f"{python}-{kind}.txt").read_text().splitlines()
        installed = dict(each.split("==") for each in frozen if "==" in each)
        told = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", counts)}
        cells = [installed[package].partition("+")[0] for package in PACKAGES]
        outcomes = [told.get(each, 0) for each in ("passed", "failed", "skipped")]
        assert f"| {python} | {kind} | {' | '.join(map(str, [*cells, *outcomes]))} |" in page
        assert outcomes[0] > 5000
        assert outcomes[1] == 0
