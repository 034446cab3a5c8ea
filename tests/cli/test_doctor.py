"""`rl-infonce doctor` on a sound machine and on broken ones."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.cli import doctor, main
from tests.cli.running import ctrl_c, errors_of, output_of

pytestmark = pytest.mark.atari


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def only(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (check,))


@pytest.mark.slow
def test_a_sound_machine_passes_and_nothing_is_left(here: Path) -> None:
    lines = output_of("doctor").splitlines()
    assert all(line.startswith(("ok  ", "warn ", "      ")) for line in lines)
    for expected in (
        "torch ",
        "cv2 ",
        "Pong starts, 6 actions",
        "logs can be written",
        "256 steps",
    ):
        assert any(expected in line for line in lines)
    assert not list(here.iterdir())


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, doctor._imports)
    assert main(["doctor"]) == 0
    monkeypatch.setitem(sys.modules, "loky", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    lines = output_of("doctor", code=1).splitlines()
    failed = [line for line in lines if line.startswith("fail")]
    assert [line.split()[1] for line in failed] == ["PIL", "loky"]


def test_every_required_package_is_imported() -> None:
    of_packages = {
        **{"opencv-python-headless": "cv2", "pillow": "PIL"},
        **{"ale-py": "ale_py", "stable-baselines3": "stable_baselines3"},
    }
    required = {
        re.match(r"[\w-]+", each)[0]  # type: ignore[index]
        for each in requires("rl-infonce") or []
        if "extra ==" not in each and "python_version" not in each
    }
    modules = {of_packages.get(package, package) for package in required}
    assert modules == {*doctor._MODULES} - {"tomli"}


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, ctrl_c)
    assert errors_of("doctor", code=130) == "Stopped.\n"


def test_a_broken_check_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_folder: Path) -> Any:
        raise ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(doctor, "CHECKS", (broken, doctor._versions))
    first, mend, last = output_of("doctor", code=1).splitlines()
    assert first.startswith("fail  broken: ImportError('libGL.so.1")
    assert "pip install" in mend
    assert last.startswith("ok    Python")


def test_it_starts_where_packages_are_missing() -> None:
    code = (
        "import sys\n"
        "missing = ('ale_py', 'numpy', 'gymnasium', 'torch', 'stable_baselines3', 'filelock')\n"
        "sys.modules.update(dict.fromkeys(missing))\n"
        "from rl_infonce.cli import main\n"
        "sys.exit(main(['doctor']))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "fail  emulator: ModuleNotFoundError" in answer.stdout
    assert "in the clone: pip install --force-reinstall -c constraints.txt ." in answer.stdout


def test_two_opencvs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Package:
        def __init__(self, name: str) -> None:
            self.metadata = {"Name": name}

    both = [Package("opencv-python"), Package("opencv-python-headless")]
    monkeypatch.setattr(doctor, "distributions", lambda: both)
    only(monkeypatch, doctor._opencv)
    out = output_of("doctor")
    assert "warn  opencv-python and opencv-python-headless" in out
    assert "pip uninstall opencv-python opencv-python-headless" in out


def test_folders_that_cannot_be_written_fail_and_full_disks_warn(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, doctor._folders)
    usage = shutil.disk_usage(here)._replace(free=10**9)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert output_of("doctor").count("warn ") == 2

    def refuse(dir: Path) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    out = output_of("doctor", "--log-folder", "elsewhere/logs", code=1)
    assert "fail  logs: elsewhere/logs cannot be written: Permission denied" in out
    assert "pass --log-folder" in out
    assert "set XDG_CACHE_HOME" in out


def test_extras_are_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", missing)
    only(monkeypatch, doctor._extras)
    assert "pip install 'rl-infonce[plots]'" in output_of("doctor")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_loss_that_is_not_finite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rl_infonce.sb3.extractor.InfoNCEExtractor._publish", lambda *_: None
    )  # nothing is reported, as if no loss had been computed
    only(monkeypatch, doctor._training)
    assert "fail  256 steps of PPO on Pong: InfoNCE loss nan" in output_of("doctor", code=1)
