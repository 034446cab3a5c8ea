"""What `rl-infonce train` is to do: its flags, or the record of a run that goes on, or both."""

from __future__ import annotations

import argparse
import math
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_infonce.cli.arguments import made_folder
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.kinds import PATH, TEXT, Choice, Count, Kind, Texts, is_legal
from rl_infonce.runs.checkpoints import checkpoints
from rl_infonce.runs.run_directory import new_record, read_record
from rl_infonce.settings import LOSS_SETTINGS, InfoNCESettings, declared

ENCODER = "encoder.safetensors"
"""In a run's folder: with which it began."""

EXTRACTOR_SETTINGS = ("preset", *declared(InfoNCESettings))
_RUN_FLAGS = (
    "algo",
    "hyperparams",
    "n_timesteps",
    "n_envs",
    "device",
    "pretrained",
    "num_threads",
    "log_folder",
    "tensorboard_log",
    "save_freq",
    "on_nan",
)
# What a run that goes on may have another one of, and what says where it is.
_OF_A_SESSION = {"n_timesteps", "save_freq", "tensorboard_log"}
_RECORDED = ("game", "seed", "freeze_encoder", *_RUN_FLAGS, *LOSS_SETTINGS)
_FIXED = {*_RECORDED} - _OF_A_SESSION


def named_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder that `--resume` or `--run-dir` name, which is there then; None without.

    Raises:
        ValueError: If both are given, or `--resume` and what the run has of its own.
        FileNotFoundError: If `--resume` names no run.
        OSError: If the folder cannot be made.
    """
    if arguments.resume is not None and arguments.run_dir is not None:
        raise ValueError("Expected `--resume` or `--run-dir`, got both.")
    given = sorted(_FIXED & arguments.given)
    if arguments.resume is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"Expected `--resume` without {flags}: the run has its own.")
    if arguments.resume is not None:
        read_record(arguments.resume)
    elif arguments.run_dir is not None:
        made_folder("--run-dir", arguments.run_dir)
    folder = arguments.resume or arguments.run_dir
    return None if folder is None else Path(folder)


def planned(
    arguments: argparse.Namespace, run_dir: Path | None
) -> tuple[dict[str, Any], argparse.Namespace]:
    """Return the record of the run, and the arguments with which it starts or goes on.

    Args:
        arguments: Of the parser, with `given`.
        run_dir: That flags name, held by this process; None if it is still to be found.

    Raises:
        ValueError: If flags and record do not fit together, or the folder is another's.
        OSError: If the record cannot be read.
    """
    if run_dir is None or not (run_dir / "run.json").exists():
        if run_dir is not None:
            _check_unused(run_dir, arguments.pretrained)
        return _new_run(arguments)
    record = read_record(run_dir)
    former = _recorded(arguments, record, run_dir / "run.json")
    _check_given(arguments, former)
    session = {name: getattr(arguments, name) for name in _OF_A_SESSION & arguments.given}
    own = {"n_timesteps": budget_of(record), "tensorboard_log": _curves(former, session, run_dir)}
    return record, argparse.Namespace(**{**vars(arguments), **former, **own, **session})


def budget_of(record: Mapping[str, Any]) -> int:
    """Return the agent steps of a whole run: those it was given last."""
    budgets = [session["n_timesteps"] for session in record["sessions"] if "n_timesteps" in session]
    return int([record["arguments"]["n_timesteps"], *budgets][-1])


def _new_run(arguments: argparse.Namespace) -> tuple[dict[str, Any], argparse.Namespace]:
    if arguments.game is None:
        raise ValueError("Expected `--game`, or `--resume` with the folder of a run.")
    if arguments.n_envs is None:
        from rl_infonce.training.rl_zoo import N_ENVS

        arguments.n_envs = N_ENVS[arguments.algo]
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    return new_record(
        {name: _plain(getattr(arguments, name)) for name in _RECORDED}, seed
    ), arguments


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _check_unused(run_dir: Path, encoder: Path | None) -> None:
    """Raise if a folder without a record holds what a run would overwrite or go on from."""
    found = [run_dir / "model.zip"] if (run_dir / "model.zip").exists() else []
    found += checkpoints(run_dir / "checkpoints")
    tables = [run_dir / name for name in ("progress.csv", "episodes.csv")]
    # A run killed before it wrote its record leaves tables without rows, and its encoder.
    found += [path for path in tables if path.is_file() and len(path.read_bytes().split()) > 1]
    copy = run_dir / ENCODER
    if encoder is not None and copy.exists() and copy.read_bytes() != encoder.read_bytes():
        found.append(copy)
    if found:
        raise ValueError(
            f"Expected `--run-dir` {run_dir} to be new or to hold a run, got {found[0]} without "
            "run.json. Choose another folder."
        )


def _recorded(
    arguments: argparse.Namespace, record: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return the settings of a record, which may be anyone's; what it lacks has its default."""
    from rl_infonce.training.rl_zoo import N_ENVS

    found = {}
    for name, kind in _kinds().items():
        default = arguments.default_of(name)
        value = record["arguments"].get(name, default)
        if value is not default and not is_legal(kind, value):
            raise ValueError(f"Expected `{name}` in {path} to be {kind.words}, got {value!r}.")
        found[name] = value
    if found["game"] is None or "n_timesteps" not in record["arguments"]:
        raise ValueError(f"Expected `game` and `n_timesteps` in the arguments of {path}, got none.")
    for name in ("pretrained", "tensorboard_log"):
        found[name] = found[name] and Path(found[name])
    n_envs = found["n_envs"] or N_ENVS[found["algo"]]
    return {**found, "n_envs": n_envs, "seed": record["seed"]}


def _kinds() -> dict[str, Kind]:
    """Return what each recorded setting but the seed must be."""
    from rl_infonce.sweeps.settings_check import SETTINGS
    from rl_infonce.training.atari_model import ALGORITHMS

    own: dict[str, Kind] = {
        "game": TEXT,
        "algo": Choice(tuple(ALGORITHMS)),
        "n_timesteps": Count(),
        "num_threads": Count(-math.inf),
        "hyperparams": Texts(),
        "tensorboard_log": PATH,
    }
    return {
        name: (SETTINGS | own)[name] for name in _RECORDED if name not in ("seed", "log_folder")
    }


def _check_given(arguments: argparse.Namespace, former: Mapping[str, Any]) -> None:
    """Raise unless the flags given are those of a run, but for what a session may change."""
    differing = [
        f"{name} is {_plain(getattr(arguments, name))!r} (was {_plain(former[name])!r})"
        for name in sorted(_FIXED & arguments.given)
        if name != "log_folder" and not _are_equal(name, getattr(arguments, name), former[name])
    ]
    if differing:
        raise ValueError(
            f"Expected `--run-dir` {arguments.run_dir} with the settings it has, got: "
            f"{'; '.join(differing)}."
        )


def _are_equal(name: str, given: Any, former: Any) -> bool:
    if name != "hyperparams":
        return bool(given == former)
    # in any order, and 1 is 1.0
    return parse_hyperparameters(given or ()) == parse_hyperparameters(former or ())


def _curves(former: Mapping[str, Any], session: Mapping[str, Any], run_dir: Path) -> Path | None:
    """Return the recorded folder of curves if it is the run's own: a record may be anyone's."""
    folder: Path | None = former["tensorboard_log"]
    if folder is None or folder.resolve().is_relative_to(run_dir.resolve()):
        return folder
    if "tensorboard_log" not in session:
        print(
            f"rl-infonce train: TensorBoard's curves go to {run_dir / 'tb'} and not to {folder}, "
            "outside of the run. Give --tensorboard-log again to go on there.",
            file=sys.stderr,
        )
    return None


def counterpart(arguments: argparse.Namespace, seed: int) -> str:
    """Return the command whose run differs from this one in the loss alone."""
    words = ["rl-infonce", "train", "--game", arguments.game, "--seed", str(seed)]
    for name in (*_RUN_FLAGS, *LOSS_SETTINGS):
        given = getattr(arguments, name)
        if name != "infonce_coef" and given != arguments.default_of(name):
            several = given if isinstance(given, list) else [given]
            flag = f"--{'no-' if given is False else ''}{name.replace('_', '-')}"
            words += [flag, *([] if isinstance(given, bool) else map(str, several))]
    if arguments.freeze_encoder:
        words.append("--freeze-encoder")
    if arguments.infonce_coef == 0:
        return f"{shlex.join(words)}  # with InfoNCE"
    return f"{shlex.join(words)} --infonce-coef 0  # the baseline"
