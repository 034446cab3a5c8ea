"""The package as users and tools see it from outside."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

import rl_infonce

ROOT = Path(__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    finished = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return set(finished.stdout.split())


def test_importing_the_package_is_light() -> None:
    heavy = {"stable_baselines3", "ale_py", "matplotlib", "torch", "gymnasium"}
    assert not imported_by("import rl_infonce") & heavy


@pytest.mark.parametrize("room", ["nce", "temporal", "encoders", "objective"])
def test_numeric_rooms_know_no_host(room: str) -> None:
    heavy = {"stable_baselines3", "ale_py", "matplotlib", "gymnasium"}
    assert not imported_by(f"import rl_infonce.{room}") & heavy


def test_the_plugin_works_without_sb3_contrib_and_ale_py() -> None:
    found = imported_by("from rl_infonce import InfoNCEExtractor, InfoNCECallback")
    assert "stable_baselines3" in found
    assert not found & {"sb3_contrib", "matplotlib"}


def test_public_names_can_be_imported_and_are_listed() -> None:
    for name in rl_infonce.__all__:
        assert getattr(rl_infonce, name) is not None
    assert dir(rl_infonce) == sorted(rl_infonce.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="InfoNCEExtractr"):
        _ = rl_infonce.InfoNCEExtractr


def test_metadata_names_version_licence_and_types() -> None:
    assert version("rl-infonce") == rl_infonce.__version__
    assert metadata("rl-infonce")["License-Expression"] == "MIT"
    assert (ROOT / "rl_infonce" / "py.typed").exists()


def test_the_tested_torch_is_pinned() -> None:
    assert "torch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
