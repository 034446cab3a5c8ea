"""`rl-infonce pretrain`: an encoder from frames alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import add_progress, game_argument, made_folder, shows_progress
from rl_infonce.scoring.defaults import LABELS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rl_infonce.pretraining import EpisodeFrames, PretrainingObjective, Progress

_ENCODERS = {"stdim": "screen", "nature": "agent", "impala": "agent"}
_POLICIES = ("random-without-noop", "random")
_RANKS_WAIT = timedelta(minutes=10)  # the first one checks the frames while others wait


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pretrain` and its flags."""
    parser = subparsers.add_parser(
        "pretrain",
        help="train an encoder on frames of a game, without reward",
        description="Train an encoder on frames of an Atari game, without reward, and write "
        "encoder.safetensors, a checkpoint and TensorBoard curves to FOLDER. The same command goes "
        "on where it was stopped. Under torchrun, ranks share each batch.",
    )
    add = parser.add_argument
    add("--game", "--env", type=game_argument, required=True, help='any spelling, e.g. "pong"')
    add("--objective", default="stdim", metavar="NAME", help="stdim, infonce, cpc, ... (stdim)")
    add(
        "--budget", default="10m", help='"10m", "1.5h", "5000" (steps), "250k frames" (%(default)s)'
    )
    add(
        "--encoder",
        choices=tuple(_ENCODERS),
        default="stdim",
        help="stdim reads 210x160 screens; nature and impala read what agents see (%(default)s)",
    )
    add("-n", "--n-frames", type=int, default=100_000, metavar="N", help="(%(default)s)")
    add("--policy", choices=_POLICIES, default=_POLICIES[0], help="that plays (%(default)s)")
    add("--labels", metavar="VERSION", help=f"that supervised is told ({LABELS})")
    add("--data-seed", type=int, default=1, metavar="N", help="of the games; probes use 0 (1)")
    add("--batch-size", type=int, metavar="N", help="samples per step (64; cpc: 16)")
    add("--micro-batch-size", type=int, metavar="N", help="encoded at a time (all)")
    add("--learning-rate", type=float, default=3e-4, metavar="X", help="(%(default)s)")
    add(
        "--precision",
        choices=("bf16", "fp32"),
        help="(bf16 where the GPU or CPU multiplies it in hardware, else fp32)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of weights and batches (0)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (%(default)s)")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="(pretrained/GAME-OBJECTIVE[-ENCODER]-SEED)",
    )
    add_progress(add)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Pretrain, save the encoder and return the exit code.

    0: done. 1: failed, with the reason; the last checkpoint is kept. 130: stopped by Ctrl-C,
    likewise. Wrong usage leaves with 2.

    Args:
        arguments: What the parser returned.
    """
    from rl_infonce.checks import check_choice, check_number
    from rl_infonce.device import usable_device
    from rl_infonce.pretraining import OBJECTIVES, parse_budget
    from rl_infonce.pretraining.objectives import paints_screens

    try:
        check_choice("--objective", arguments.objective, OBJECTIVES)
        if paints_screens(arguments.objective) and _ENCODERS[arguments.encoder] != "screen":
            raise ValueError(
                f"Expected `--encoder` stdim with --objective {arguments.objective}, which paints "
                f"210x160 screens, got {arguments.encoder}. Leave --encoder out, or choose another "
                "objective."
            )
        check_number("--n-frames", arguments.n_frames, at_least=8)
        for flag in ("seed", "data_seed"):
            check_number(f"--{flag.replace('_', '-')}", getattr(arguments, flag), at_least=0)
        labels = _labels(arguments)
        budget = parse_budget(arguments.budget)
        device = usable_device(arguments.device)
        settings = _settings(arguments, device)
    except ValueError as error:
        arguments.usage_error(str(error))
    folder = arguments.output or Path("pretrained") / _name(arguments)
    try:
        with _process_group(device):
            made_folder("--output", folder)
            _pretrain(arguments, folder, budget, settings, device, labels)
    except KeyboardInterrupt:
        print(f"Stopped. The same command goes on from {folder}.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        print(f"rl-infonce pretrain: {error}", file=sys.stderr)
        return 1
    return 0


def _name(arguments: argparse.Namespace) -> str:
    encoder = "" if arguments.encoder == "stdim" else f"{arguments.encoder}-"
    return f"{arguments.game}-{arguments.objective}-{encoder}{arguments.seed}"


def _labels(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the version and the hash of the labels to learn; nothing if there are none to learn.

    Raises:
        ValueError: If labels are asked for that nobody learns, or the game has none.
    """
    from rl_infonce.atari.labels import labels_hash

    if arguments.objective == "supervised":
        version = LABELS if arguments.labels is None else arguments.labels
        return {"labels": version, "labels_hash": labels_hash(arguments.game, version)}
    if arguments.labels is None:
        return {}
    raise ValueError(
        f"Expected `--labels` with --objective supervised only, got it with {arguments.objective}, "
        "which is told none. Leave it out; rl-infonce probe has --labels, too."
    )


def _settings(arguments: argparse.Namespace, device: Any) -> Any:
    from rl_infonce.device import has_fast_bf16
    from rl_infonce.pretraining import PretrainingSettings
    from rl_infonce.pretraining.objectives import default_batch_size

    return PretrainingSettings(
        batch_size=default_batch_size(arguments.objective)
        if arguments.batch_size is None
        else arguments.batch_size,
        micro_batch_size=arguments.micro_batch_size,
        learning_rate=arguments.learning_rate,
        precision=arguments.precision or ("bf16" if has_fast_bf16(device) else "fp32"),
        seed=arguments.seed,
    )


def _process_group(device: Any) -> Any:
    """Return the context of the process group that torchrun asks for, or one that does nothing."""
    import torch
    import torch.distributed as dist

    from rl_infonce.pretraining.ranks import join_ranks

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return contextlib.nullcontext()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        join_ranks("nccl" if device.type == "cuda" else "gloo", _RANKS_WAIT)
    except RuntimeError as error:  # torch's own, of one that does not come
        raise ConnectionError(
            f"Expected {os.environ['WORLD_SIZE']} ranks to meet, got: {error} What the others say "
            "is the reason; start all ranks again."
        ) from error
    stack = contextlib.ExitStack()
    stack.callback(dist.destroy_process_group)
    return stack


def _pretrain(
    arguments: argparse.Namespace,
    folder: Path,
    budget: Any,
    settings: Any,
    device: Any,
    labels: dict[str, str],
) -> None:
    from dataclasses import asdict

    import torch
    from tqdm import tqdm

    from rl_infonce.networks.encoder_file import save_encoder
    from rl_infonce.pretraining import make_objective, pretrain
    from rl_infonce.runs.run_directory import software

    is_first = os.environ.get("RANK", "0") == "0"
    shows = is_first and shows_progress(arguments)
    train, validation = _frames(arguments, labels, progress=shows)
    generator = torch.Generator().manual_seed(arguments.seed)
    objective: PretrainingObjective = make_objective(
        arguments.objective,
        _encoder(arguments.encoder, generator),
        generator,
        variables=tuple(train.labels),
    ).to(device)
    about = {
        name: getattr(arguments, name)
        for name in ("game", "objective", "encoder", "n_frames", "policy", "data_seed")
    } | labels
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(tqdm(desc=folder.name, unit="step", disable=not shows))
        curves = stack.enter_context(contextlib.closing(_Curves(folder))) if is_first else None
        progress = pretrain(
            objective,
            train,
            validation,
            budget,
            settings,
            folder=folder,
            about=about,
            on_progress=lambda progress: _show(progress, bar, curves),
        )
        if curves is not None:
            curves.draw(progress.history)
    if not is_first:
        return
    path = folder / "encoder.safetensors"
    provenance = {
        **about,
        **software(),
        **asdict(settings),
        "budget": arguments.budget,
        "steps": progress.step,
        "best_step": progress.best_step,
        "validation_loss": progress.best_loss,
        "seconds": round(progress.seconds, 1),
    }
    save_encoder(objective.encoder, path, provenance=provenance)
    print(
        f"{progress.step} steps in {progress.seconds:.0f} s, validation loss "
        f"{progress.best_loss:.3f} at step {progress.best_step}\nEncoder: {path}\nNext:\n"
        f"  {_probe_command(arguments, path, labels)}"
    )


def _probe_command(arguments: argparse.Namespace, path: Path, labels: dict[str, str]) -> str:
    """Return what asks the encoder about play and labels of the kind it was trained on."""
    words = ["rl-infonce", "probe", "--game", arguments.game, "--features-of", str(path)]
    words += ["--policy", arguments.policy, *(["--labels", labels["labels"]] if labels else [])]
    # In a folder of its own: scores of other frames and labels are refused beside these.
    return shlex.join([*words, "--output", str(path.parent / "probes")])


class _Curves:
    """TensorBoard's, of all sessions: a former one may have been killed before it drew a point."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.n_drawn = folder, 0
        self.writer: SummaryWriter | None = None

    def draw(self, history: list[dict[str, float | None]]) -> None:
        """Add the points that are new, to a file that hides those of former sessions."""
        from torch.utils.tensorboard import SummaryWriter

        if self.n_drawn == len(history):
            return
        if self.writer is None:
            self.writer = SummaryWriter(str(self.folder), purge_step=0)
        for entry in history[self.n_drawn :]:
            for key, value in entry.items():
                if key != "step" and value is not None:
                    self.writer.add_scalar(f"pretrain/{key}", value, entry["step"])
        self.writer.flush()  # whoever is killed has drawn all or nothing
        self.n_drawn = len(history)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.writer is not None:
            self.writer.close()


def _show(progress: Progress, bar: Any, curves: _Curves | None) -> None:
    """Move the bar, and draw the curves' next points if there was a validation."""
    if bar.n == 0:  # a run that goes on starts in the middle
        bar.initial = bar.n = progress.step - 1
    bar.total = progress.n_steps or None
    bar.update(progress.step - bar.n)
    if curves is not None and progress.history:
        bar.set_postfix(loss=f"{progress.history[-1]['validation_loss']:.3f}", refresh=False)
        curves.draw(progress.history)


def _encoder(name: str, generator: Any) -> Any:
    from rl_infonce.networks.architectures import STDIMEncoder
    from rl_infonce.networks.pixel_encoder import PixelEncoder

    if name == "stdim":
        return STDIMEncoder(generator)
    return PixelEncoder((4, 84, 84), encoder=name, generator=generator)


def _frames(
    arguments: argparse.Namespace, told: dict[str, str], *, progress: bool
) -> tuple[EpisodeFrames, EpisodeFrames]:
    """Return the frames to learn from and those held out, with labels for who is told them."""
    from dataclasses import replace

    import numpy as np

    from rl_infonce.atari.cache import cached_frames
    from rl_infonce.pretraining import training_and_validation
    from rl_infonce.probing import drop_low_entropy

    view = _ENCODERS[arguments.encoder]
    frames = cached_frames(
        arguments.game,
        arguments.n_frames,
        seed=arguments.data_seed,
        policy=arguments.policy.replace("-", "_"),
        view=view,
        progress=progress,
    )
    train, held_out = training_and_validation(
        frames.observations(view),
        frames.episode_ids,
        np.random.default_rng(arguments.seed),
        group_ids=frames.game_ids,
    )
    if not told:
        return train, held_out
    labels, _ = drop_low_entropy(frames.labelled(view, told["labels"]).labels, train.rows)
    return replace(train, labels=labels), replace(held_out, labels=labels)
