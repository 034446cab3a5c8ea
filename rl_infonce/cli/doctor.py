"""`rl-infonce doctor`: does this machine have what training and probing need?"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import NamedTuple

from rl_infonce.cli.arguments import shown
from rl_infonce.runs.software import PACKAGES

_GIGABYTE = 10**9
_MODULES = (
    *("torch", "stable_baselines3", "gymnasium", "ale_py", "numpy", "tensorboard", "cv2"),
    *("PIL", "filelock", "loky", "rich", "safetensors", "tqdm"),
    *(("tomli",) if sys.version_info < (3, 11) else ()),
)
_OPENCV = "opencv-python", "opencv-python-headless", "opencv-contrib-python"


class Finding(NamedTuple):
    """One line of the report (ok, warn or fail), with what mends it if something is wrong."""

    status: str
    text: str
    mend: str = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` and its flags."""
    parser = subparsers.add_parser(
        "doctor",
        example="rl-infonce doctor",
        help="check versions, device, ROMs and folders, and train for a few seconds",
        description="Check what training and probing need. Every line is ok, warn or fail, with "
        "what mends it. The exit code is 1 if a line fails.",
    )
    add, usual = parser.add_argument, Path("logs")
    add("-f", "--log-folder", type=Path, default=usual, metavar="LOGS", help=shown("Log folder"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what each check finds; return 1 if one fails."""
    failed = False
    for check in CHECKS:
        try:
            findings = list(check(arguments.log_folder))
        except Exception as error:  # noqa: BLE001 (the other checks are to be made)
            findings = [Finding("fail", f"{check.__name__.strip('_')}: {error!r}", _REINSTALL)]
        for finding in findings:
            mend = f"\n      {finding.mend}" if finding.mend else ""
            print(f"{finding.status:<5} {finding.text}{mend}", flush=True)
            failed |= finding.status == "fail"
    return int(failed)


_REINSTALL = "in the clone: pip install --force-reinstall -c constraints.txt ."


def _versions(_folder: Path) -> Iterator[Finding]:
    found = [f"{package} {version(package)}" for package in ("rl-infonce", *PACKAGES)]
    yield Finding("ok", f"Python {sys.version.split()[0]}, {', '.join(found)}")


def _imports(_folder: Path) -> Iterator[Finding]:
    broken = False
    for module in _MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 (a broken package may raise anything)
            broken = True
            yield Finding("fail", f"{module} cannot be imported: {error!r}", _REINSTALL)
    if not broken:
        yield Finding("ok", f"all {len(_MODULES)} required packages can be imported")


def _opencv(_folder: Path) -> Iterator[Finding]:
    names = {str(each.metadata["Name"]).lower() for each in distributions()}
    installed = [package for package in _OPENCV if package in names]
    if len(installed) > 1:
        yield Finding(
            "warn",
            f"{' and '.join(installed)} share one folder; whichever came last won",
            f"pip uninstall {' '.join(installed)}; pip install opencv-python-headless",
        )
    import cv2

    yield Finding("ok", f"cv2 {cv2.__version__}")


def _device(_folder: Path) -> Iterator[Finding]:
    import torch

    from rl_infonce.device import has_fast_bf16, usable_device

    if not has_fast_bf16(usable_device("auto")):
        yield Finding("ok", "no bf16 in hardware: pretraining is in fp32, --precision bf16 is slow")
    if torch.cuda.is_available():
        yield Finding("ok", f"GPU {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    else:
        n_threads = torch.get_num_threads()
        threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
        yield Finding("ok", f"no GPU; {threads} on the CPU")
        if version("torch").endswith("+cpu") and shutil.which("nvidia-smi"):
            yield Finding(
                "warn",
                "there is an NVIDIA driver, but torch is built for the CPU",
                "pip install --force-reinstall torch",
            )


def _emulator(_folder: Path) -> Iterator[Finding]:
    from rl_infonce.atari.emulator import game_facts
    from rl_infonce.atari.games import games

    facts = game_facts("pong")
    yield Finding("ok", f"{len(games())} games; Pong starts, {len(facts.actions)} actions")


def _folders(log_folder: Path) -> Iterator[Finding]:
    from rl_infonce.atari.cache import default_cache_folder

    for what, folder in (("logs", log_folder), ("frames", default_cache_folder())):
        parent = next(each for each in [folder, *folder.absolute().parents] if each.exists())
        free = shutil.disk_usage(parent).free / _GIGABYTE
        try:
            with tempfile.TemporaryFile(dir=parent) as file:
                file.write(b"0" * 4096)
        except OSError as error:
            yield Finding(
                "fail", f"{what}: {folder} cannot be written: {error.strerror}", _other_folder(what)
            )
            continue
        status = "ok" if free > 2 else "warn"
        mend = "" if status == "ok" else _other_folder(what)
        yield Finding(status, f"{what}: {folder} can be written, {free:.0f} GB free", mend)


def _other_folder(what: str) -> str:
    return "pass --log-folder" if what == "logs" else "set XDG_CACHE_HOME to another disk"


def _extras(_folder: Path) -> Iterator[Finding]:
    for package, extra, purpose in (
        ("matplotlib", "plots", "figures of ProbeCallback"),
        ("scipy", "report", "`rl-infonce report`"),
        ("huggingface_hub", "hub", "`rl-infonce push` and `pull`"),
        ("imageio-ffmpeg", "video", "videos as MP4, of `rl-infonce evaluate`"),
        ("sb3-contrib", "contrib", "QR-DQN, TQC, CrossQ, MaskablePPO, RecurrentPPO, TRPO"),
        ("mujoco", "mujoco", "HalfCheetah-v5 and its like"),
    ):
        try:
            yield Finding("ok", f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding(
                "ok", f"no {package}: without {purpose} (pip install 'rl-infonce[{extra}]')"
            )


def _training(_folder: Path) -> Iterator[Finding]:
    import math

    from stable_baselines3 import PPO

    from rl_infonce import InfoNCEExtractor, make_atari_vec_env

    start = time.perf_counter()
    env = make_atari_vec_env("pong", n_envs=2, seed=0)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=64,
        batch_size=64,
        n_epochs=1,
        policy_kwargs={"features_extractor_class": InfoNCEExtractor, "net_arch": []},
        seed=0,
    )
    model.learn(256)
    env.close()
    extractor = model.policy.features_extractor
    loss = extractor.last_infonce.get("loss", math.nan)  # type: ignore[union-attr, operator]
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
        yield Finding("fail", f"256 steps of PPO on Pong: InfoNCE loss {loss}", _REINSTALL)
    else:
        yield Finding(
            "ok", f"256 steps of PPO + InfoNCE on Pong in {seconds:.1f} s, loss {loss:.2f} nats"
        )


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _versions,
    _imports,
    _opencv,
    _device,
    _emulator,
    _folders,
    _extras,
    _training,
)
