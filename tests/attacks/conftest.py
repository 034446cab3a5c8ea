"""Good files of every format, written once for all tests of a worker, and copies to be harmed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.forging import SoundModel, members_of
from tests.attacks.formats import FORMATS, good_files


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return where the good files of each format are; `good_files` writes them there."""
    return {name: tmp_path_factory.mktemp("good") / name for name in FORMATS}


@pytest.fixture
def copied(places: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return what copies the good files of a format into a folder of the test."""

    def copy(name: str) -> Path:
        good_files(name, places[name])
        return Path(shutil.copytree(places[name], tmp_path / name))

    return copy


@pytest.fixture
def model(places: dict[str, Path], tmp_path: Path) -> SoundModel:
    """Return a sound model that is not written yet."""
    members = members_of(good_files("model", places["model"])["model.zip"])
    return SoundModel(members, tmp_path / "model.zip")
