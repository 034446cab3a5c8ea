"""`rl-infonce train`: PPO with temporal InfoNCE on an Atari game."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.game_argument import game_argument
from rl_infonce.runs.run_directory import claim_run_directory, new_record, now, write_record

if TYPE_CHECKING:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from rl_infonce.pixel_encoder import PixelEncoder

__all__ = ["add_parser", "run"]

_EXTRACTOR_FLAGS = ("infonce_coef", "horizons", "preset", "precision", "n_pairs")
_RUN_FLAGS = (
    "n_timesteps",
    "n_envs",
    "device",
    "encoder",
    "num_threads",
    "log_folder",
    "tensorboard_log",
)
_N_STEPS, _BATCH_SIZE = 128, 256  # RL Zoo's PPO on Atari, as all numbers in _make_model
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` and its flags, in RL Zoo's spelling."""
    parser = subparsers.add_parser(
        "train",
        help="train PPO with temporal InfoNCE on an Atari game",
        description="Train PPO with temporal InfoNCE on an Atari game. Writes run.json, model.zip "
        "and TensorBoard curves to LOGS/ppo/GAME_1, then GAME_2, and so on.",
    )
    add = parser.add_argument
    add("--game", "--env", type=game_argument, required=True, help='any spelling, e.g. "pong"')
    add("-n", "--n-timesteps", type=int, default=30_000, metavar="N", help=_shown("agent steps"))
    add("--n-envs", type=int, default=8, metavar="N", help=_shown("games played at once"))
    add("--seed", type=int, help="0 to 2**31 - 1 (drawn, and recorded in run.json)")
    add("--device", default="auto", help=_shown("auto, cpu, cuda, cuda:1, ..."))
    add("--encoder", type=Path, metavar="FILE", help="start from a pretrained encoder.safetensors")
    add("--freeze-encoder", action="store_true", help="leave its weights alone")
    add("--num-threads", type=int, default=-1, metavar="N", help="of torch on CPU (its own choice)")
    add(
        "-f",
        "--log-folder",
        type=Path,
        default=Path("logs"),
        metavar="LOGS",
        help=_shown("folder of all runs"),
    )
    add("-tb", "--tensorboard-log", type=Path, metavar="DIR", help="curves (in the run's folder)")
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
    parser.set_defaults(run=run, usage_error=parser.error, default_of=parser.get_default)


def _shown(meaning: str) -> str:
    return f"{meaning} (%(default)s)"


def run(arguments: argparse.Namespace, callback: BaseCallback | None = None) -> int:
    """Train into a new run directory and return the exit code.

    The directory holds `run.json`, the curves and, however the run ends, `model.zip`. An exception
    of the run is raised again after saving.

    Args:
        arguments: What the parser returned.
        callback: Called during training beside the command's own.
    """
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    try:
        _check(arguments, seed)
        model = _make_model(arguments, seed)
    except (ValueError, TypeError, OSError) as error:
        arguments.usage_error(str(error))
    try:
        run_dir = claim_run_directory(arguments.log_folder / "ppo", arguments.game)
        tb_dir = _tensorboard_directory(arguments.tensorboard_log, run_dir)
    except OSError as error:
        arguments.usage_error(f"Cannot write the logs: {error}")
    settings = {k: v for k, v in vars(arguments).items() if not callable(v)}
    record = new_record(
        {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}, seed
    )
    record["device"] = str(model.device)
    write_record(run_dir, record)
    print(f"Training PPO on {arguments.game} (seed {seed}, {model.device}) in {run_dir}")
    stopped_by = _learn(model, arguments, run_dir, tb_dir, record, callback)
    _print_ending(model, arguments, run_dir, tb_dir, record)
    return 0 if stopped_by is None else _EXIT_CODES[stopped_by]


def _check(arguments: argparse.Namespace, seed: int) -> None:
    import torch

    from rl_infonce.checks import check_number
    from rl_infonce.device import usable_device

    check_number("--n-timesteps", arguments.n_timesteps, at_least=1)
    check_number("--seed", seed, at_least=0, at_most=2**31 - 1)
    usable_device(arguments.device)
    if arguments.num_threads > 0:
        torch.set_num_threads(arguments.num_threads)


def _make_model(arguments: argparse.Namespace, seed: int) -> PPO:
    from stable_baselines3 import PPO
    from stable_baselines3.common.utils import LinearSchedule

    from rl_infonce import InfoNCEExtractor, make_atari_vec_env
    from rl_infonce.sb3.pretrained import use_encoder

    given = {flag: getattr(arguments, flag) for flag in _EXTRACTOR_FLAGS}
    pretrained = _pretrained(arguments)
    if pretrained is not None:
        given |= {"encoder": pretrained.encoder, "features_dim": pretrained.features_dim}
    env = make_atari_vec_env(arguments.game, arguments.n_envs, seed=seed)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=_N_STEPS,
        batch_size=min(_BATCH_SIZE, _N_STEPS * arguments.n_envs),
        n_epochs=4,
        learning_rate=LinearSchedule(2.5e-4, 0.0, 1.0),
        clip_range=LinearSchedule(0.1, 0.0, 1.0),
        vf_coef=0.5,
        ent_coef=0.01,
        policy_kwargs={
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": {k: v for k, v in given.items() if v is not None},
            "net_arch": [],  # as SB3 does for NatureCNN, so that --infonce-coef 0 is its baseline
        },
        device=arguments.device,
        seed=seed,
    )
    if pretrained is not None:
        use_encoder(model, pretrained, freeze=arguments.freeze_encoder)
    return model


def _pretrained(arguments: argparse.Namespace) -> PixelEncoder | None:
    """Return the encoder to start from, whose architecture the extractor takes over."""
    from rl_infonce.pixel_encoder import PixelEncoder
    from rl_infonce.saved_encoder import load_encoder

    if arguments.encoder is None:
        if arguments.freeze_encoder:
            raise ValueError("Expected `--encoder` beside --freeze-encoder.")
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


def _learn(
    model: PPO,
    arguments: argparse.Namespace,
    run_dir: Path,
    tb_dir: Path,
    record: dict[str, Any],
    callback: BaseCallback | None,
) -> signal.Signals | None:
    """Train, and save model and record whatever happens; return the signal that ended it."""
    from stable_baselines3.common.callbacks import ConvertCallback
    from stable_baselines3.common.logger import configure

    progress = sys.stdout.isatty() if arguments.progress is None else arguments.progress
    model.set_logger(
        configure(str(tb_dir), ["tensorboard"] if progress else ["stdout", "tensorboard"])
    )
    stopped_by: list[signal.Signals] = []
    callbacks: list[BaseCallback] = [ConvertCallback(lambda _locals, _globals: not stopped_by)]
    callbacks += [callback] if callback else []
    status, start = "failed", time.perf_counter()
    with _signals_noted_in(stopped_by):  # around the saving, too: a late Ctrl-C must not cut it
        try:
            model.learn(arguments.n_timesteps, callback=callbacks, progress_bar=progress)
            status = "interrupted" if stopped_by else "done"
        except KeyboardInterrupt:  # a second Ctrl-C, or one from inside a callback
            status = "interrupted"
            stopped_by.append(signal.SIGINT)
        finally:
            record["status"] = status
            _finish(model, run_dir, record, time.perf_counter() - start)
    return stopped_by[0] if stopped_by else None


def _finish(model: PPO, run_dir: Path, record: dict[str, Any], seconds: float) -> None:
    """Save the model first, then the record, then the last curves."""
    _save(model, run_dir)
    record.update(
        end_time=now(),
        wall_seconds=round(seconds, 3),
        n_timesteps_done=model.num_timesteps,
        steps_per_second=round(model.num_timesteps / seconds, 1),
    )
    write_record(run_dir, record)
    if record["status"] == "failed":
        print(f"The run failed; what was trained is in {run_dir / 'model.zip'}", file=sys.stderr)
    if model.logger.name_to_value:  # SB3 writes an update's curves one rollout later
        model.logger.dump(model.num_timesteps)
    model.logger.close()
    model.get_env().close()  # type: ignore[union-attr]


@contextmanager
def _signals_noted_in(stopped_by: list[signal.Signals]) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM end the run after the current step, the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    previous = {number: signal.getsignal(number) for number in _EXIT_CODES}

    def note(number: int, _frame: FrameType | None) -> None:
        stopped_by.append(signal.Signals(number))
        for each, handler in previous.items():
            signal.signal(each, handler)

    for number in previous:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _save(model: PPO, run_dir: Path) -> None:
    partial = run_dir / "model.partial.zip"
    model.save(partial)
    os.replace(partial, run_dir / "model.zip")  # never half a model under the final name


def _print_ending(
    model: PPO, arguments: argparse.Namespace, run_dir: Path, tb_dir: Path, record: dict[str, Any]
) -> None:
    print(
        f"{record['status'].capitalize()}: {model.num_timesteps} steps in "
        f"{record['wall_seconds']:.0f} s ({record['steps_per_second']:.0f} steps/s)"
    )
    print(_verdict(model), end="")
    print(f"Model:  {run_dir / 'model.zip'}\nCurves: {tb_dir}\nNext:")
    print(f"  tensorboard --logdir {tb_dir.parent if tb_dir.name != 'tb' else run_dir.parent}")
    print("  " + _counterpart(arguments, record["seed"]))


def _verdict(model: PPO) -> str:
    """Return the last update's loss and accuracy beside what they must beat, or "" without any."""
    extractor: Any = model.policy.features_extractor
    numbers: dict[str, float] = extractor.last_infonce
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
            several = given if isinstance(given, list) else [given]
            words += [f"--{name.replace('_', '-')}", *map(str, several)]
    if arguments.freeze_encoder:
        words.append("--freeze-encoder")
    if arguments.infonce_coef == 0:
        return f"{shlex.join(words)}  # with InfoNCE"
    return f"{shlex.join(words)} --infonce-coef 0  # the baseline"
