"""`rl-infonce train`: PPO with temporal InfoNCE on an Atari game."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import add_former, add_progress, game_argument, made_folder, shown
from rl_infonce.cli.setting_flags import add_settings
from rl_infonce.cli.train_arguments import ENCODER, EXTRACTOR_SETTINGS, named_folder, planned
from rl_infonce.cli.train_run import TrainRun
from rl_infonce.files.durable import replace_bytes
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.runs.run_directory import claim_run_directory, hold_run
from rl_infonce.settings import LOSS_SETTINGS

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback


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
    add("--algo", choices=("ppo", "dqn"), default="ppo", help=shown("algorithm"))
    add("-n", "--n-timesteps", type=int, default=30_000, metavar="N", help=shown("agent steps"))
    add("--n-envs", type=int, metavar="N", help="games played at once (8; dqn: 1)")
    add("--seed", type=int, help="0 to 2**31 - 1 (drawn, and recorded in run.json)")
    add("--device", default="auto", help=shown("auto, cpu, cuda, cuda:1, ..."))
    add("--pretrained", type=Path, metavar="FILE", help="start from this encoder.safetensors")
    add_former(add, "--encoder", "--pretrained", type=Path)
    add(
        "--freeze-encoder",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="leave its weights alone, or random ones",
    )
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
        help=shown("folder of all runs"),
    )
    add("--run-dir", type=Path, metavar="RUN", help="start in this folder, or go on there")
    add("-tb", "--tensorboard-log", type=Path, metavar="DIR", help="curves (in the run's folder)")
    add("--save-freq", type=int, default=25_000, metavar="N", help=shown("steps per checkpoint"))
    add("--on-nan", choices=("stop", "skip"), default="stop", help=shown("if a gradient is NaN"))
    add_progress(add)
    group = parser.add_argument_group("InfoNCE (what is not given comes from the preset)")
    add_settings(group.add_argument, LOSS_SETTINGS)
    parser.set_defaults(run=run, usage_error=parser.error, default_of=parser.get_default)


def run(arguments: argparse.Namespace, callback: BaseCallback | None = None) -> int:
    """Train in a new run directory, or go on in one, and return the exit code.

    The directory holds `run.json`, checkpoints, curves, the encoder that it began with, if it was
    pretrained, and, however the run ends, `model.zip`. An
    exception of the run is raised again after saving. 75: stopped by a signal after the update,
    with a checkpoint to go on from. 130: by Ctrl-C at once. 1: a damaged checkpoint, or numbers
    that went bad.

    Args:
        arguments: What the parser returned.
        callback: Called during training beside the command's own.
    """
    with contextlib.ExitStack() as held:
        try:
            run_dir = named_folder(arguments)
            if run_dir is not None:  # nobody else changes its record from now on
                held.enter_context(hold_run(run_dir))
            record, arguments = planned(arguments, run_dir)
            encoder_file = _encoder_file(arguments, run_dir)
            callbacks = _callbacks(arguments, callback)
            model = _make_model(arguments, record, encoder_file)
        except (ValueError, TypeError, OSError, MemoryError) as error:
            arguments.usage_error(str(error))
        try:
            if arguments.tensorboard_log is not None:  # before a run's folder is claimed in vain
                made_folder("--tensorboard-log", arguments.tensorboard_log)
            if run_dir is None:
                logs = made_folder("--log-folder", arguments.log_folder / arguments.algo)
                run_dir = claim_run_directory(logs, arguments.game)
                held.enter_context(hold_run(run_dir))
            tb_dir = _tensorboard_directory(arguments.tensorboard_log, arguments.algo, run_dir)
            run = TrainRun(run_dir, tb_dir, record)
            if encoder_file is not None and encoder_file.parent != run_dir:
                replace_bytes(run_dir / ENCODER, encoder_file.read_bytes())
        except OSError as error:
            arguments.usage_error(f"Cannot write the logs: {error}")
        return run.train(model, arguments, callbacks)


def _callbacks(arguments: argparse.Namespace, given: BaseCallback | None) -> list[BaseCallback]:
    from rl_infonce.sb3.callbacks import decoupled_callback

    decoupled = decoupled_callback(
        arguments.decoupled,
        arguments.decoupled_learning_rate,
        max_grad_ratio=arguments.max_grad_ratio,
    )
    return [each for each in (decoupled, given) if each is not None]


def _encoder_file(arguments: argparse.Namespace, run_dir: Path | None) -> Path | None:
    """Return the encoder to start from: a run that goes on has its own copy."""
    if run_dir is not None and (run_dir / "run.json").exists() and (run_dir / ENCODER).exists():
        return run_dir / ENCODER
    given: Path | None = arguments.pretrained
    return given


def _make_model(
    arguments: argparse.Namespace, record: dict[str, Any], encoder_file: Path | None
) -> BaseAlgorithm:
    import torch

    from rl_infonce.agents.pretrained import pixel_encoder
    from rl_infonce.checks import check_number
    from rl_infonce.device import usable_device
    from rl_infonce.training.atari_model import make_atari_model

    check_number("--n-timesteps", arguments.n_timesteps, at_least=1)
    check_number("--save-freq", arguments.save_freq, at_least=1)
    check_number("--seed", record["seed"], at_least=0, at_most=2**31 - 1)
    usable_device(arguments.device)
    if arguments.num_threads > 0:
        torch.set_num_threads(arguments.num_threads)
    given = {name: getattr(arguments, name) for name in EXTRACTOR_SETTINGS}
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
        encoder=None if encoder_file is None else pixel_encoder(encoder_file),
        freeze=arguments.freeze_encoder,
    )


def _tensorboard_directory(folder: Path | None, algo: str, run_dir: Path) -> Path:
    tb_dir = run_dir / "tb" if folder is None else folder / algo / run_dir.name
    tb_dir.mkdir(parents=True, exist_ok=True)
    return tb_dir
