"""Load experiments by path, as they are scripts and no package, and read the pages of studies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


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
    return (EXPERIMENTS / "results" / name).read_text(encoding="utf-8")


def study_words(name: str) -> str:
    """Return the page of a study on one line, so that a sentence is found however it is wrapped."""
    return " ".join(study_page(name).split())
