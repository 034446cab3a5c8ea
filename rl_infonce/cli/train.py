"""`rl-infonce train`: PPO with temporal InfoNCE on an Atari game."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import secrets
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.game_argument import game_argument
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.runs.durable import replace_bytes
from rl_infonce.runs.run_directory import (
    claim_run_directory,
    hold_run,
    new_record,
    now,
    read_record,
    write_record,
)
from rl_infonce.runs.signals import stopping_signals

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback

    from rl_infonce.pixel_encoder import PixelEncoder

__all__ = ["add_parser", "run"]

_EXTRACTOR_FLAGS = (
    "infonce_coef",
    "horizons",
    "preset",
    "precision",
    "n_pairs",
    "positives",
    "augment_observations",
)
_RUN_FLAGS = (
    "algo",
    "hyperparams",
    "n_timesteps",
    "n_envs",
    "device",
    "encoder",
    "num_threads",
    "log_folder",
    "tensorboard_log",
    "save_freq",
    "on_nan",
)
_OF_A_SESSION = {"resume", "resume_inexact", "fall_back", "n_timesteps", "save_freq", "progress"}
_OF_A_PLACE = {"run_dir", "log_folder", "tensorboard_log"}
_RESUMABLE = 75  # EX_TEMPFAIL: try again later


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` and its flags, in RL Zoo's spelling."""
    parser = subparsers.add_parser(
        "train",
        help="train PPO or DQN with temporal InfoNCE on an Atari game",
        description="Train PPO or DQN with temporal InfoNCE on an Atari game. Writes run.json, "
        "checkpoints, curves and model.zip to LOGS/ALGO/GAME_1, then GAME_2, and so on. A run that "
        "was stopped or killed goes on with --resume, exactly.",
    )
    add = parser.add_argument
    add("--game", "--env", type=game_argument, help='any spelling, e.g. "pong"')
    add("--resume", type=Path, metavar="RUN", help="go on with the run in this folder instead")
    add("--resume-inexact", action="store_true", help="also with other versions of packages")
    add("--fall-back", action="store_true", help="from the checkpoint before a damaged one")
    add("--algo", choices=("ppo", "dqn"), default="ppo", help=_shown("algorithm"))
    add("-n", "--n-timesteps", type=int, default=30_000, metavar="N", help=_shown("agent steps"))
    add("--n-envs", type=int, metavar="N", help="games played at once (8; dqn: 1)")
    add("--seed", type=int, help="0 to 2**31 - 1 (drawn, and recorded in run.json)")
    add("--device", default="auto", help=_shown("auto, cpu, cuda, cuda:1, ..."))
    add("--encoder", type=Path, metavar="FILE", help="start from a pretrained encoder.safetensors")
    add("--freeze-encoder", action="store_true", help="leave its weights alone, or random ones")
    add(
        "-params",
        "--hyperparams",
        nargs="+",
        metavar="NAME:VALUE",
        help="of the algorithm, e.g. n_epochs:6 learning_rate:lin_1e-4 (RL Zoo's)",
    )
    add("--num-threads", type=int, default=-1, metavar="N", help="of torch on CPU (its own choice)")
    add(
        "-f",
        "--log-folder",
        type=Path,
        default=Path("logs"),
        metavar="LOGS",
        help=_shown("folder of all runs"),
    )
    add("--run-dir", type=Path, metavar="RUN", help="start in this folder, or go on there")
    add("-tb", "--tensorboard-log", type=Path, metavar="DIR", help="curves (in the run's folder)")
    add("--save-freq", type=int, default=25_000, metavar="N", help=_shown("steps per checkpoint"))
    add("--on-nan", choices=("stop", "skip"), default="stop", help=_shown("if a gradient is NaN"))
    add("-P", "--progress", action=argparse.BooleanOptionalAction, help="bar (in a terminal: on)")
    group = parser.add_argument_group("InfoNCE (what is not given comes from the preset)")
    add = group.add_argument
    add("--preset", metavar="NAME", help="cpc, stdim, atc or curl (cpc)")
    add("--infonce-coef", type=float, metavar="X", help="weight of the loss; 0 is the baseline")
    add(
        "--horizons",
        type=int,
        nargs="+",
        metavar="K",
        help="steps between anchor and positive, e.g. 4 8",
    )
    add("--n-pairs", type=int, metavar="N", help="anchors per gradient step")
    add("--precision", choices=("fp32", "bf16"), help="of the encoder (fp32)")
    add("--positives", metavar="NAME", help="future, or shuffled for a placebo (future)")
    add(
        "--augment-observations",
        action="store_true",
        default=None,
        help="let the RL loss see moved images, too",
    )
    parser.set_defaults(run=run, usage_error=parser.error, default_of=parser.get_default)


def _shown(meaning: str) -> str:
    return f"{meaning} (%(default)s)"


def run(arguments: argparse.Namespace, callback: BaseCallback | None = None) -> int:
    """Train in a new run directory, or go on in one, and return the exit code.

    The directory holds `run.json`, checkpoints, curves and, however the run ends, `model.zip`. An
    exception of the run is raised again after saving. 75: stopped by a signal after the update,
    with a checkpoint to go on from. 130: by Ctrl-C at once. 1: a damaged checkpoint, or numbers
    that went bad.

    Args:
        arguments: What the parser returned.
        callback: Called during training beside the command's own.
    """
    try:
        if arguments.run_dir is not None and (arguments.run_dir / "run.json").exists():
            record, arguments = _same_run(arguments)
        elif arguments.resume is not None:
            record, arguments = _former(arguments)
        else:
            record = _new_record(arguments)
        model = _make_model(arguments, record)
    except (ValueError, TypeError, OSError) as error:
        arguments.usage_error(str(error))
    with contextlib.ExitStack() as held:
        try:
            run_dir = _run_directory(arguments)
            held.enter_context(hold_run(run_dir))
            run = _Run(run_dir, _tensorboard_directory(arguments.tensorboard_log, run_dir), record)
        except OSError as error:
            arguments.usage_error(f"Cannot write the logs: {error}")
        return run.train(model, arguments, callback)


def _new_record(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill in what was left open, and return what `run.json` says at the start."""
    if arguments.game is None:
        raise ValueError("Expected `--game`, or `--resume` with the folder of a run.")
    if arguments.n_envs is None:
        from rl_infonce.sb3.atari_model import N_ENVS

        arguments.n_envs = N_ENVS[arguments.algo]
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    settings = {k: v for k, v in vars(arguments).items() if not callable(v)}
    return new_record({k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}, seed)


def _run_directory(arguments: argparse.Namespace) -> Path:
    """Return the folder of a run that goes on, the one asked for, or the next free one."""
    if arguments.resume is not None:
        return Path(arguments.resume)
    if arguments.run_dir is not None:
        arguments.run_dir.mkdir(parents=True, exist_ok=True)
        return Path(arguments.run_dir)
    return claim_run_directory(arguments.log_folder / arguments.algo, arguments.game)


def _same_run(arguments: argparse.Namespace) -> tuple[dict[str, Any], argparse.Namespace]:
    """Return the record of the run in `--run-dir` and its arguments, if they are those given."""
    if arguments.resume is not None:
        raise ValueError("Expected `--resume` or `--run-dir`, got both.")
    former = read_record(arguments.run_dir)
    given = _new_record(arguments)
    differing = [
        f"{name} is {given['arguments'].get(name)!r} (was {former['arguments'].get(name)!r})"
        for name in sorted(
            {*given["arguments"], *former["arguments"]} - _OF_A_SESSION - _OF_A_PLACE
        )
        if given["arguments"].get(name) != former["arguments"].get(name)
    ]
    if differing:
        raise ValueError(
            f"Expected `--run-dir` {arguments.run_dir} with the settings it has, got: "
            f"{'; '.join(differing)}."
        )
    arguments.resume = arguments.run_dir
    return former, arguments


def _former(arguments: argparse.Namespace) -> tuple[dict[str, Any], argparse.Namespace]:
    """Return the record of a run and its arguments, with what may be changed now."""
    given = {k: v for k, v in vars(arguments).items() if v != arguments.default_of(k)}
    fixed = sorted(given.keys() - _OF_A_SESSION - {"run", "usage_error", "default_of", "command"})
    if fixed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise ValueError(f"Expected `--resume` without {flags}: the run has its own.")
    record = read_record(arguments.resume)
    former = dict(record["arguments"])
    for name in ("encoder", "log_folder", "tensorboard_log"):
        former[name] = former[name] and Path(former[name])
    now_given = {name: value for name, value in given.items() if name in _OF_A_SESSION}
    return record, argparse.Namespace(**{**vars(arguments), **former, **now_given})


def _make_model(arguments: argparse.Namespace, record: dict[str, Any]) -> BaseAlgorithm:
    import torch

    from rl_infonce.checks import check_number
    from rl_infonce.device import usable_device
    from rl_infonce.sb3.atari_model import make_atari_model

    check_number("--n-timesteps", arguments.n_timesteps, at_least=1)
    check_number("--save-freq", arguments.save_freq, at_least=1)
    check_number("--seed", record["seed"], at_least=0, at_most=2**31 - 1)
    usable_device(arguments.device)
    if arguments.num_threads > 0:
        torch.set_num_threads(arguments.num_threads)
    given = {flag: getattr(arguments, flag) for flag in _EXTRACTOR_FLAGS}
    hyperparameters = parse_hyperparameters(arguments.hyperparams or ())
    return make_atari_model(
        arguments.algo,
        arguments.game,
        n_timesteps=record["arguments"]["n_timesteps"],
        n_envs=arguments.n_envs,
        seed=record["seed"],
        device=arguments.device,
        extractor={name: value for name, value in given.items() if value is not None},
        hyperparameters=hyperparameters,
        encoder=_pretrained(arguments),
        freeze=arguments.freeze_encoder,
    )


def _pretrained(arguments: argparse.Namespace) -> PixelEncoder | None:
    """Return the encoder to start from, whose architecture the extractor takes over."""
    from rl_infonce.pixel_encoder import PixelEncoder
    from rl_infonce.saved_encoder import load_encoder

    if arguments.encoder is None:
        return None
    encoder = load_encoder(arguments.encoder)
    if not isinstance(encoder, PixelEncoder):
        raise ValueError(
            f"Expected `--encoder` to read what agents see, got {type(encoder).__name__}. Pretrain "
            "with --encoder nature or impala."
        )
    return encoder


def _tensorboard_directory(folder: Path | None, run_dir: Path) -> Path:
    tb_dir = run_dir / "tb" if folder is None else folder / run_dir.name
    tb_dir.mkdir(parents=True, exist_ok=True)
    return tb_dir


class _Run:
    """A run directory that this process holds."""

    def __init__(self, run_dir: Path, tb_dir: Path, record: dict[str, Any]) -> None:
        self.run_dir, self.tb_dir, self.record = run_dir, tb_dir, record
        self.model_file = run_dir / "model.zip"

    def train(
        self, model: BaseAlgorithm, arguments: argparse.Namespace, callback: BaseCallback | None
    ) -> int:
        """Train what is left, save whatever happens, and return the exit code."""
        from rl_infonce.sb3.episode_log import EpisodeLogCallback
        from rl_infonce.sb3.nan_guard import NanGuardCallback
        from rl_infonce.sb3.resume import ResumeCallback

        resume = ResumeCallback(
            self.run_dir / "checkpoints", max(arguments.save_freq // model.n_envs, 1)
        )
        try:
            is_restored = arguments.resume is not None and resume.restore(
                model, inexact=arguments.resume_inexact, fall_back=arguments.fall_back
            )
        except (ValueError, OSError) as error:
            print(f"rl-infonce train: {error}", file=sys.stderr)
            return 1
        session = self._begin(model)
        words = f"Resuming at step {model.num_timesteps}" if is_restored else "Training"
        print(
            f"{words}: {arguments.algo.upper()} on {arguments.game} (seed {self.record['seed']}, "
            f"{model.device}) in {self.run_dir}"
        )
        guard = NanGuardCallback(self.run_dir, on_nan=arguments.on_nan)
        episodes = EpisodeLogCallback(self.run_dir / "episodes.csv")
        callbacks = [*([] if callback is None else [callback]), episodes, guard, resume]
        code = self._learn(model, arguments, callbacks, session)
        self._print_ending(model, arguments)
        return code

    def _begin(self, model: BaseAlgorithm) -> dict[str, Any]:
        from rl_infonce.device import hardware_name

        session = {
            "start_time": now(),
            "first_step": model.num_timesteps,
            "process": os.getpid(),
            "host": platform.node(),
            "hardware": hardware_name(model.device),
        }
        self.record["sessions"].append(session)
        self.record.update(status="running", device=str(model.device))
        write_record(self.run_dir, self.record)
        return session

    def _learn(
        self,
        model: BaseAlgorithm,
        arguments: argparse.Namespace,
        callbacks: list[Any],
        session: dict[str, Any],
    ) -> int:
        from rl_infonce.sb3.resume import NotSavedError
        from rl_infonce.sb3.run_logs import run_logger

        progress = sys.stdout.isatty() if arguments.progress is None else arguments.progress
        model.set_logger(
            run_logger(
                self.run_dir,
                self.tb_dir,
                first_step=model.num_timesteps,
                goes_on=arguments.resume is not None,
                on_screen=not progress,
            )
        )
        *_, episodes, _, resume = callbacks
        status, code, start = "failed", 1, time.perf_counter()
        with stopping_signals(lambda _signal: resume.ask_to_stop()):
            try:
                n_left = max(arguments.n_timesteps - model.num_timesteps, 0)
                if n_left:
                    model.learn(n_left, callbacks, reset_num_timesteps=False, progress_bar=progress)
                is_done = model.num_timesteps >= arguments.n_timesteps or not resume.stopped
                status, code = ("done", 0) if is_done else ("interrupted", _RESUMABLE)
            except (FloatingPointError, NotSavedError) as error:
                print(f"rl-infonce train: {error}", file=sys.stderr)
            except KeyboardInterrupt:  # a second Ctrl-C, or one from inside a callback
                status, code = "interrupted", 130
            finally:
                self.record["status"] = status
                episodes.close()
                self._finish(model, session, time.perf_counter() - start)
        return code

    def _finish(self, model: BaseAlgorithm, session: dict[str, Any], seconds: float) -> None:
        """Save the model first, then the record, then the last curves."""
        self._save(model)
        n_steps = model.num_timesteps - session["first_step"]
        session.update(end_time=now(), wall_seconds=round(seconds, 3))
        self.record.update(
            end_time=now(),
            wall_seconds=round(sum(s.get("wall_seconds", 0.0) for s in self.record["sessions"]), 3),
            n_timesteps_done=model.num_timesteps,
            steps_per_second=round(n_steps / seconds, 1),
        )
        try:
            write_record(self.run_dir, self.record)
        except OSError as error:
            print(f"rl-infonce train: run.json could not be updated: {error}", file=sys.stderr)
        if self.record["status"] == "failed":
            print(f"The run failed; what was trained is in {self.model_file}", file=sys.stderr)
        if model.logger.name_to_value:  # SB3 writes an update's curves one rollout later
            model.logger.dump(model.num_timesteps)
        model.logger.close()
        model.get_env().close()  # type: ignore[union-attr]

    def _save(self, model: BaseAlgorithm) -> None:
        file = io.BytesIO()
        model.save(file)
        try:
            replace_bytes(self.model_file, file.getvalue())
        except OSError as error:
            elsewhere = Path(tempfile.mkdtemp(prefix="rl_infonce_")) / self.model_file.name
            print(
                f"rl-infonce train: {self.model_file} could not be written: {error}. Trying "
                f"{elsewhere} instead.",
                file=sys.stderr,
            )
            self.model_file = elsewhere
            replace_bytes(elsewhere, file.getvalue())

    def _print_ending(self, model: BaseAlgorithm, arguments: argparse.Namespace) -> None:
        from rl_infonce.sb3.best_model import find_best

        record, run_dir, tb_dir = self.record, self.run_dir, self.tb_dir
        print(
            f"{record['status'].capitalize()}: {model.num_timesteps} steps in "
            f"{record['wall_seconds']:.0f} s ({record['steps_per_second']:.0f} steps/s)"
        )
        print(_verdict(model), end="")
        print(f"Model:  {self.model_file}")
        if (best := find_best(run_dir / "checkpoints")) is not None:
            print(f"Best:   {best.path} (step {best.step}, mean return {best.mean_return:.1f})")
        print(f"Curves: {tb_dir}\nNext:")
        if record["status"] == "interrupted":
            print(f"  rl-infonce train --resume {shlex.quote(str(run_dir))}")
        print(f"  tensorboard --logdir {tb_dir.parent if tb_dir.name != 'tb' else run_dir.parent}")
        print("  " + _counterpart(arguments, record["seed"]))


def _verdict(model: BaseAlgorithm) -> str:
    """Return the last update's loss and accuracy beside what they must beat, or "" without any."""
    from rl_infonce.sb3.callbacks import trained_extractors

    (extractor,) = trained_extractors(model.policy)
    numbers = extractor.last_infonce
    horizon = f"k{extractor.horizons[0]}"
    if f"floor_pixels_{horizon}" not in numbers:  # the loss was off, or found no pairs
        return ""
    return (
        f"InfoNCE: loss {numbers['loss']:.2f} nats, chance {numbers['mi_ceiling']:.2f}; "
        f"{numbers[f'accuracy_{horizon}']:.0%} of futures found, raw pixels "
        f"{numbers[f'floor_pixels_{horizon}']:.0%}, random encoder "
        f"{numbers[f'floor_random_{horizon}']:.0%}\n"
    )


def _counterpart(arguments: argparse.Namespace, seed: int) -> str:
    """Return the command whose run differs from this one in the loss alone."""
    words = ["rl-infonce", "train", "--game", arguments.game, "--seed", str(seed)]
    for name in _RUN_FLAGS + _EXTRACTOR_FLAGS:
        given = getattr(arguments, name)
        if name != "infonce_coef" and given != arguments.default_of(name):
            several = given if isinstance(given, list) else [] if given is True else [given]
            words += [f"--{name.replace('_', '-')}", *map(str, several)]
    if arguments.freeze_encoder:
        words.append("--freeze-encoder")
    if arguments.infonce_coef == 0:
        return f"{shlex.join(words)}  # with InfoNCE"
    return f"{shlex.join(words)} --infonce-coef 0  # the baseline"
