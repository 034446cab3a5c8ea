"""Load experiments by path, as they are scripts and no package, and read the pages of studies."""

import csv
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RESULTS = EXPERIMENTS / "results"
FRONT_PAGE = "\n".join(
    (EXPERIMENTS.parent / page).read_text(encoding="utf-8")
    for page in ("README.md", "rl_infonce/sb3/README.md", "rl_infonce/sb3/IMAGES.md")
)


def load(name: str) -> ModuleType:
    """Return the script, e.g. "benchmarks/train_speed.py", as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXPERIMENTS / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def study_page(name: str) -> str:
    """Return the page of a study, e.g. "kills.md" or "ppo_arms/README.md"."""
    return (RESULTS / name).read_text(encoding="utf-8")


def study_words(name: str) -> str:
    """Return the page of a study on one line, so that a sentence is found however it is wrapped."""
    return " ".join(study_page(name).split())


def committed(name: str) -> dict[str, Any]:
    """Return the committed result, e.g. "kills.json"."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def committed_runs(study: str) -> list[dict[str, str]]:
    """Return the rows of the runs of a sweep, e.g. "ppo_arms"."""
    with (RESULTS / study / "runs.csv").open() as file:
        return list(csv.DictReader(file))
