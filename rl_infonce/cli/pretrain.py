"""`rl-infonce pretrain`: an encoder from frames alone."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import add_game, add_progress, shown, shows_progress
from rl_infonce.cli.setting_flags import add_settings
from rl_infonce.runs.run_directory import made_folder
from rl_infonce.scoring.defaults import LABELS, POLICIES
from rl_infonce.settings import ENCODER_SETTINGS

if TYPE_CHECKING:
    from rl_infonce.pretraining import Progress
    from rl_infonce.training.atari_encoder import EncoderPlan

_ENCODERS = ("stdim", "nature", "impala")
_POLICIES = tuple(reversed(POLICIES))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pretrain` and its flags."""
    parser = subparsers.add_parser(
        "pretrain",
        usage="%(prog)s --game GAME [options]",
        example="rl-infonce pretrain --game pong --objective stdim -o pretrained/pong",
        help="train an encoder on frames of a game, without reward",
        description="Train an encoder on frames of an Atari game, without reward, and write "
        "encoder.safetensors, a checkpoint and TensorBoard curves to FOLDER. The same command goes "
        "on where it was stopped. Under torchrun, ranks share each batch.",
    )
    add = parser.add_argument_group("what is trained").add_argument
    add_game(add)
    add(
        "--objective",
        default="stdim",
        metavar="NAME",
        help=shown("Objective: stdim, infonce, cpc, ..."),
    )
    add(
        "--budget",
        default="10m",
        help=shown('Budget: "10m", "1.5h", "5000 steps", "1.5M frames"; a number alone is steps'),
    )
    add(
        "--encoder",
        choices=_ENCODERS,
        default="stdim",
        help=shown("Architecture: stdim reads 210x160 screens, nature and impala what agents see"),
    )
    add = parser.add_argument_group("the encoder of images").add_argument
    add_settings(add, ENCODER_SETTINGS)
    add = parser.add_argument_group("frames").add_argument
    add("-n", "--n-frames", type=int, default=100_000, metavar="N", help=shown("Frames to play"))
    add("--policy", choices=_POLICIES, default=_POLICIES[0], help=shown("Policy that plays"))
    add(
        "--labels",
        metavar="VERSION",
        help=f"Labels that the objective supervised is told ({LABELS}).",
    )
    add(
        "--data-seed",
        type=int,
        default=1,
        metavar="N",
        help=shown("Seed of the games; probes use 0"),
    )
    add = parser.add_argument_group("how it is trained").add_argument
    add("--batch-size", type=int, metavar="N", help="Samples per step (64; cpc: 16).")
    add("--micro-batch-size", type=int, metavar="N", help="Samples encoded at a time (all).")
    add(
        "--learning-rate",
        type=float,
        default=3e-4,
        metavar="X",
        help=shown("Learning rate of Adam"),
    )
    add(
        "--precision",
        choices=("bf16", "fp32"),
        help="Arithmetic (bf16 where the GPU or CPU multiplies it in hardware, else fp32).",
    )
    add("--seed", type=int, default=0, metavar="N", help=shown("Seed of weights and batches"))
    add = parser.add_argument_group("where it runs, and its output").add_argument
    add("--device", default="auto", help=shown("Device, e.g. auto, cpu, cuda or cuda:1"))
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="Folder of the run (pretrained/GAME-OBJECTIVE[-ENCODER][-FORM]-SEED).",
    )
    add_progress(add)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Pretrain, save the encoder and return the exit code.

    0: done. 1: failed, with the reason. 130: stopped by Ctrl-C. The last checkpoint is kept. Wrong
    usage leaves with 2.
    """
    from rl_infonce.device import usable_device
    from rl_infonce.pretraining.ranks import process_group

    try:
        plan = encoder_plan(arguments)
    except ValueError as error:
        arguments.usage_error(str(error))
    folder = arguments.output or Path("pretrained") / plan.name
    try:
        with process_group(usable_device(plan.device)):
            made_folder("--output", folder)
            _pretrain(plan, folder, arguments)
    except KeyboardInterrupt:
        print(f"Stopped. The same command goes on from {folder}.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        print(f"rl-infonce pretrain: {error}", file=sys.stderr)
        return 1
    return 0


def encoder_plan(arguments: argparse.Namespace) -> EncoderPlan:
    """Return what the flags of `rl-infonce pretrain` ask for."""
    from dataclasses import fields

    from rl_infonce.training.atari_encoder import EncoderPlan

    given = {each.name: getattr(arguments, each.name) for each in fields(EncoderPlan)}
    if arguments.objective == "supervised" and arguments.labels is None:
        given["labels"] = LABELS
    return EncoderPlan(**given)


def _pretrain(plan: EncoderPlan, folder: Path, arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from rl_infonce.pretraining.ranks import Ranks
    from rl_infonce.training.atari_encoder import pretrain_encoder

    is_first = Ranks.here().rank == 0
    shows = is_first and shows_progress(arguments)
    with tqdm(desc=folder.name, unit="step", disable=not shows) as bar:
        path, progress = pretrain_encoder(
            plan, folder, progress=shows, on_progress=lambda progress: _show(progress, bar)
        )
    if is_first:
        print(
            f"{progress.step} steps in {progress.seconds:.0f} s, validation loss "
            f"{progress.best_loss:.3f} at step {progress.best_step}\nEncoder: {path}\nNext:\n"
            f"  {_probe_command(plan, path)}"
        )


def _probe_command(plan: EncoderPlan, path: Path) -> str:
    """Return what asks the encoder about play and labels of the kind it was trained on."""
    words = ["rl-infonce", "probe", "--game", plan.game, "--features-of", str(path)]
    words += ["--policy", plan.policy, *(["--labels", plan.labels] if plan.labels else [])]
    # In a folder of its own: scores of other frames and labels are refused beside these.
    return shlex.join([*words, "--output", str(path.parent / "probes")])


def _show(progress: Progress, bar: Any) -> None:
    if bar.n == 0:  # a run that goes on starts in the middle
        bar.initial = bar.n = progress.step - 1
    bar.total = progress.n_steps or None
    bar.update(progress.step - bar.n)
    if progress.history:
        bar.set_postfix(loss=f"{progress.history[-1]['validation_loss']:.3f}", refresh=False)
