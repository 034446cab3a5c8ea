"""`rl-infonce doctor` on a sound machine and on broken ones."""

from __future__ import annotations

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

pytestmark = pytest.mark.atari


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def only(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (check,))


@pytest.mark.slow
def test_a_sound_machine_passes_and_nothing_is_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
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


def test_a_package_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, doctor._imports)
    assert main(["doctor"]) == 0
    monkeypatch.setitem(sys.modules, "loky", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["doctor"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
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


def test_ctrl_c_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_folder: Path) -> Any:
        raise KeyboardInterrupt

    only(monkeypatch, stopped)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "Stopped.\n"


def test_a_broken_check_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_folder: Path) -> Any:
        raise ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(doctor, "CHECKS", (broken, doctor._versions))
    assert main(["doctor"]) == 1
    first, mend, last = capsys.readouterr().out.splitlines()
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


def test_two_opencvs_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Package:
        def __init__(self, name: str) -> None:
            self.metadata = {"Name": name}

    both = [Package("opencv-python"), Package("opencv-python-headless")]
    monkeypatch.setattr(doctor, "distributions", lambda: both)
    only(monkeypatch, doctor._opencv)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "warn  opencv-python and opencv-python-headless" in out
    assert "pip uninstall opencv-python opencv-python-headless" in out


def test_folders_that_cannot_be_written_fail_and_full_disks_warn(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, doctor._folders)
    usage = shutil.disk_usage(here)._replace(free=10**9)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count("warn ") == 2

    def refuse(dir: Path) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert main(["doctor", "--log-folder", "elsewhere/logs"]) == 1
    out = capsys.readouterr().out
    assert "fail  logs: elsewhere/logs cannot be written: Permission denied" in out
    assert "pass --log-folder" in out
    assert "set XDG_CACHE_HOME" in out


def test_extras_are_optional(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", missing)
    only(monkeypatch, doctor._extras)
    assert main(["doctor"]) == 0
    assert "pip install 'rl-infonce[plots]'" in capsys.readouterr().out


@pytest.mark.slow
def test_a_loss_that_is_not_finite_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "rl_infonce.sb3.extractor.InfoNCEExtractor._publish", lambda *_: None
    )  # nothing is reported, as if no loss had been computed
    only(monkeypatch, doctor._training)
    assert main(["doctor"]) == 1
    assert "fail  256 steps of PPO on Pong: InfoNCE loss nan" in capsys.readouterr().out
