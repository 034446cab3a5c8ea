"""`rl-infonce train`: an agent with temporal InfoNCE, on an Atari game or another environment."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import add_progress, add_task, shows_progress
from rl_infonce.cli.noting_parser import NotingParser
from rl_infonce.cli.setting_flags import add_settings, groups_of
from rl_infonce.hyperparameters import flag, flag_words
from rl_infonce.presets import LOSS_SETTINGS
from rl_infonce.runs.run_directory import made_folder, read_record
from rl_infonce.settings import declared, defaults
from rl_infonce.training.plan import OF_A_SESSION, TrainingPlan
from rl_infonce.training.rl_zoo import ALGORITHMS, USUAL_HYPERPARAMETERS

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback

    from rl_infonce.training.training_run import TrainingRun

_OF_A_RUN = {"seed", "log_folder", *declared(TrainingPlan), *LOSS_SETTINGS}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` and its flags, in RL Zoo's spelling."""
    parser = subparsers.add_parser(
        "train",
        usage="%(prog)s [--game GAME | --env ID] [options]",
        example="rl-infonce train --game pong -n 1000000 --run-dir runs/pong",
        help="train an agent with temporal InfoNCE on an Atari game or another environment",
        description="Train an agent with temporal InfoNCE on an Atari game or another environment. "
        "Writes run.json, checkpoints, curves and model.zip to LOGS/ALGO/GAME_1, then GAME_2, and "
        "so on. A run that was stopped or killed goes on with --resume, exactly.",
    )
    trained = parser.add_argument_group("what is trained")
    add_task(trained)
    _add_what_is_trained(trained.add_argument)
    _add_run(parser.add_argument_group("its folder, and where it runs").add_argument)
    for title, settings in groups_of(LOSS_SETTINGS).items():
        add_settings(parser.add_argument_group(title).add_argument, settings)
    parser.set_defaults(run=run, usage_error=parser.error)
    if isinstance(parser, NotingParser):
        parser.elsewhere = {
            flag(name): f"--hyperparams {name}:VALUE" for name in USUAL_HYPERPARAMETERS
        }


def _add_what_is_trained(add: Callable[..., Any]) -> None:
    _add(add, "algo", choices=tuple(ALGORITHMS), metavar="ALGO")
    _add(add, "n_timesteps", "-n", type=int, metavar="N")
    _add(add, "n_envs", type=int, metavar="N")
    add("--seed", type=int, help="Seed, 0 to 2**31 - 1 (drawn, and noted in run.json).")
    _add(add, "hyperparams", "-params", nargs="+", metavar="NAME:VALUE")
    _add(add, "normalize", action=argparse.BooleanOptionalAction)
    _add(add, "pretrained", type=Path, metavar="FILE")
    _add(add, "freeze_encoder", action=argparse.BooleanOptionalAction)


def _add_run(add: Callable[..., Any]) -> None:
    add("--run-dir", type=Path, metavar="RUN", help="Start in this folder, or go on there.")
    add("--resume", type=Path, metavar="RUN", help="Go on with the run in this folder instead.")
    add("--resume-inexact", action="store_true", help="Go on although versions or defaults differ.")
    add(
        "--fall-back",
        action="store_true",
        help="Go on from the checkpoint before a damaged one.",
    )
    add(
        "-f",
        "--log-folder",
        type=Path,
        default=Path("logs"),
        metavar="LOGS",
        help="Folder of all runs (%(default)s).",
    )
    _add(add, "tensorboard_log", "-tb", type=Path, metavar="DIR")
    _add(add, "save_freq", type=int, metavar="N")
    _add(add, "on_nan", choices=("stop", "skip"))
    add_progress(add)
    _add(add, "device")
    _add(add, "num_threads", type=int, metavar="N")


def _add(add: Callable[..., Any], name: str, *short: str, **how: Any) -> None:
    """Add the flag of a setting that `TrainingPlan` declares."""
    default = defaults(TrainingPlan)[name]
    meaning = declared(TrainingPlan)[name].meaning
    usual = "" if default is None or default is False else f" ({default})"
    if "choices" in how and "metavar" in how:
        usual = f": {', '.join(how['choices'])}{usual}"
    add(*short, flag(name), default=default, help=f"{meaning.removesuffix('.')}{usual}.", **how)


def run(arguments: argparse.Namespace, callback: BaseCallback | None = None) -> int:
    """Train in a new run directory, or go on in one, and return the exit code.

    The directory holds `run.json`, checkpoints, curves, the pretrained encoder that the run began
    with, if there was one, and, however the run ends, `model.zip`. An exception of the run is
    raised again after saving. The code is 75 if a signal stopped the run after an update, with a
    checkpoint to go on from, 130 after Ctrl-C at once, and 1 if a checkpoint is damaged or numbers
    went bad. The callback is called beside the command's own.
    """
    from rl_infonce.training.training_run import started

    callbacks = [] if callback is None else [callback]
    with contextlib.ExitStack() as held:
        try:
            folder = named_folder(arguments)
            starting = started(given_settings(arguments), folder, callbacks, complain=_complain)
            training = held.enter_context(starting)
        except (ValueError, TypeError, OSError, MemoryError) as error:
            arguments.usage_error(str(error))
        return _train(training, arguments)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a run that were given on the command line."""
    return {name: getattr(arguments, name) for name in _OF_A_RUN & arguments.given}


def named_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder that `--resume` or `--run-dir` name, which is there then; None without."""
    _check_folders(arguments)
    given = sorted((_OF_A_RUN - {*OF_A_SESSION}) & arguments.given)
    if arguments.resume is not None and given:
        flags = ", ".join(map(flag, given))
        raise ValueError(f"Expected `--resume` without {flags}: the run has its own.")
    if arguments.resume is not None:
        read_record(arguments.resume)
    elif arguments.run_dir is not None:
        made_folder("--run-dir", arguments.run_dir)
    folder = arguments.resume or arguments.run_dir
    return None if folder is None else Path(folder)


def _check_folders(arguments: argparse.Namespace) -> None:
    """Raise where the flags of a run's folder contradict each other, or one has no effect."""
    if arguments.resume is not None and arguments.run_dir is not None:
        raise ValueError("Expected `--resume` or `--run-dir`, got both.")
    if arguments.run_dir is not None and "log_folder" in arguments.given:
        raise ValueError(
            f"Expected `--run-dir` without --log-folder, got {arguments.log_folder}: the run lies "
            "where --run-dir says. Leave one of them out."
        )
    if arguments.resume is None and arguments.run_dir is None:
        for name in sorted({"fall_back", "resume_inexact"} & arguments.given):
            raise ValueError(
                f"Expected `{flag(name)}` with --resume or --run-dir, got neither: a new run has "
                "nothing to resume. Name its folder, or leave the flag out."
            )


def _train(training: TrainingRun, arguments: argparse.Namespace) -> int:
    from rl_infonce.training.run_state import is_finished

    plan, record = training.plan, training.record
    if is_finished(training.run_dir, record, plan.n_timesteps):
        print(
            f"Nothing left: {record['n_timesteps_done']} of {plan.n_timesteps} steps are trained."
        )
        _print_models(training)
        return 0
    progress = shows_progress(arguments, sys.stdout)
    try:
        is_restored = training.open(
            inexact=arguments.resume_inexact,
            fall_back=arguments.fall_back,
            on_screen=not progress,
        )
    except (ValueError, OSError) as error:
        _complain(str(error))
        return 1
    words = f"Resuming at step {training.model.num_timesteps}" if is_restored else "Training"
    print(
        f"{words}: {plan.algo.upper()} on {plan.task} (seed {plan.seed}, {training.model.device}) "
        f"in {training.run_dir}"
    )
    print(_note(training), end="")
    code = training.learn(progress=progress)
    _print_ending(training)
    return code


# -- what is printed -------------------------------------------------------------------------------


def _complain(line: str) -> None:
    print(f"rl-infonce train: {line}", file=sys.stderr)


def _note(training: TrainingRun) -> str:
    """Return a line about a weight that changes nothing, or "" where there is none."""
    from rl_infonce.sb3.callbacks import trained_extractors

    coef = training.plan.loss.get("infonce_coef")
    isolated = any(each.is_isolated for each in trained_extractors(training.model.policy))
    if not coef or not isolated:
        return ""
    return (
        f"Note: --infonce-coef {coef:g} trains as every value above 0 does, since the loss alone "
        "trains the encoder. --encoder-learning-rate says how fast.\n"
    )


def _print_models(training: TrainingRun) -> None:
    from rl_infonce.report.formatting import return_form
    from rl_infonce.resuming.best_model import find_best

    print(f"Model:  {training.model_file or 'none, as it could not be written'}")
    if (best := find_best(training.run_dir / "checkpoints")) is not None:
        mean = format(best.mean_return, return_form([best.mean_return], ".1f"))
        print(f"Best:   {best.path} (step {best.step}, mean return {mean})")


def _print_ending(training: TrainingRun) -> None:
    record, run_dir, tb_dir = training.record, training.run_dir, training.tb_dir
    print(_ending(record, training.model.num_timesteps))
    print(_verdict(training.model), end="")
    _print_models(training)
    print(f"Curves: {tb_dir}\nNext:")
    if record["status"] == "interrupted":
        words = ["--resume", str(run_dir), *flag_words(_of_this_session(training))]
        print(f"  rl-infonce train {shlex.join(words)}")
    logs = tb_dir.parent if tb_dir.name != "tb" else run_dir.parent
    print(f"  tensorboard --logdir {shlex.quote(str(logs))}")
    print("  " + _counterpart(training.plan, training.model))


def _ending(record: Mapping[str, Any], n_steps: int) -> str:
    """Return how a run's last session ended, the steps of the run being told beside its own."""
    session = record["sessions"][-1]  # those before may have been killed and noted no seconds
    saved = session["saved_step"]
    is_behind = record["status"] == "interrupted" and saved not in (None, n_steps)
    kept = f", saved at step {saved}" if is_behind else ""
    in_all = f", {n_steps} in all" if session["first_step"] else ""
    return (
        f"{record['status'].capitalize()}: {n_steps - session['first_step']} steps in "
        f"{session['wall_seconds']:.1f} s ({record['steps_per_second']:.0f} steps/s){in_all}{kept}"
    )


def _of_this_session(training: TrainingRun) -> dict[str, Any]:
    """Return the settings that a next session does not take from the record."""
    plan, former = training.plan, training.record["arguments"]
    curves = {} if plan.tensorboard_log is None else {"tensorboard_log": plan.tensorboard_log}
    usual = defaults(TrainingPlan)
    now = {name: getattr(plan, name) for name in ("save_freq", "device", "num_threads")}
    return curves | {name: now[name] for name in now if now[name] != former.get(name, usual[name])}


def _verdict(model: BaseAlgorithm) -> str:
    """Return the last loss and accuracy beside what they must beat, or "" with the loss off."""
    from rl_infonce.sb3.callbacks import trained_extractors

    extractors = trained_extractors(model.policy)  # SAC's actor and critic have one each
    extractor = next((each for each in extractors if each.last_infonce), extractors[0])
    if extractor.infonce_coef == 0:
        return ""
    numbers = extractor.last_infonce
    horizon = f"k{extractor.horizons[0]}"
    inputs = "pixels" if f"floor_pixels_{horizon}" in numbers else "observations"
    if f"floor_{inputs}_{horizon}" not in numbers:
        return "InfoNCE: no update was made: too few steps for the first one, or no pairs in them\n"
    n_terms = len(extractor.settings.terms)  # the loss is their sum
    judged = (
        f"InfoNCE: loss {numbers['loss']:.2f} nats, chance {n_terms * numbers['mi_ceiling']:.2f}; "
        if extractor.settings.objective == "infonce"
        else f"Loss without negatives: {numbers['loss']:.2f}; by the cosine "
    )
    return (
        f"{judged}{numbers[f'accuracy_{horizon}']:.0%} of futures found, raw {inputs} "
        f"{numbers[f'floor_{inputs}_{horizon}']:.0%}, random encoder "
        f"{numbers[f'floor_random_{horizon}']:.0%}\n"
    )


def _counterpart(plan: TrainingPlan, model: BaseAlgorithm) -> str:
    """Return the command whose run differs from this one in the loss alone."""
    usual = TrainingPlan().flat()
    task = ["--env", plan.env] if plan.game is None else ["--game", plan.game]
    words = ["rl-infonce", "train", *map(str, task), "--seed", str(plan.seed)]
    changed = {name: value for name, value in plan.flat().items() if value != usual[name]}
    for name in ("game", "env", "seed", "infonce_coef", "freeze_encoder"):
        changed.pop(name, None)
    words += flag_words(changed)
    if plan.freeze_encoder:  # which leaves nothing for the loss to train
        return f"{shlex.join(words)} --infonce-coef 0  # trained by RL"
    if plan.loss.get("infonce_coef") == 0:
        words += [] if plan.loss.get("decoupled") else _needed_isolation(model)
        return f"{shlex.join(words)}  # with InfoNCE"
    return f"{shlex.join(words)} --infonce-coef 0  # the baseline"


def _needed_isolation(model: BaseAlgorithm) -> list[str]:
    """Return the flag without which the loss of such a model would train nothing, if it is so."""
    from rl_infonce.sb3.binding import unfit_for_attaching
    from rl_infonce.sb3.callbacks import trained_extractors

    is_isolated = all(each.settings.isolated for each in trained_extractors(model.policy))
    return ["--isolated"] if unfit_for_attaching(model) and not is_isolated else []
