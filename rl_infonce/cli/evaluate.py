"""`rl-infonce evaluate`: what does a saved agent score?"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.cli.arguments import add_progress, add_task, add_trust_pickle, shown, shows_progress
from rl_infonce.hyperparameters import flag

if TYPE_CHECKING:
    from rl_infonce.training.evaluation import Evaluation, EvaluationPlan

_MOST_SECONDS = 200  # Pillow keeps a video, as a GIF, in memory until it is whole


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `evaluate` and its flags."""
    parser = subparsers.add_parser(
        "evaluate",
        usage="%(prog)s --model PATH [options]",
        example="rl-infonce evaluate --model runs/pong --n-episodes 10",
        help="play whole games with a saved agent and say what they returned",
        description="Play whole Atari games, or episodes of another environment, with a saved "
        "agent and print every score with mean and standard error. Scores of games are their own "
        "points over all lives, whatever was clipped in training. No code in the model file is "
        "executed.",
    )
    played = parser.add_argument_group("who plays what")
    add = played.add_argument
    add(
        "--model",
        type=Path,
        required=True,
        metavar="PATH",
        help="A PPO, A2C or DQN agent of a game saved by SB3 (.zip), or the directory of a run of "
        "any algorithm and environment.",
    )
    add("--best", action="store_true", help="Take the run's model whose episodes returned most.")
    add_task(played, usual=" (that of the run)")
    add_trust_pickle(add)
    add = parser.add_argument_group("how much is played").add_argument
    add("--n-episodes", type=int, default=10, metavar="N", help=shown("Whole games to play"))
    add("--n-envs", type=int, default=8, metavar="N", help=shown("Games played at once"))
    add(
        "--max-frames",
        type=int,
        default=108_000,
        metavar="N",
        help="Emulator frames, 4 to a step, after which a game is cut (%(default)s: 30 minutes).",
    )
    add("--seed", type=int, default=0, metavar="N", help=shown("Seed of games and actions"))
    acting = parser.add_argument_group("how it acts")
    how = acting.add_mutually_exclusive_group()
    how.add_argument(
        "--stochastic",
        dest="deterministic",
        action="store_false",
        default=False,
        help="Sample PPO's and A2C's actions, and let DQN explore as it did when it was saved (the "
        "default on Atari, as in RL Zoo).",
    )
    how.add_argument(
        "--deterministic",
        action="store_true",
        help="Take the best action (the default elsewhere); on Atari such an agent may wait "
        "forever, as for a ball it never fires.",
    )
    acting.add_argument(
        "--epsilon", type=float, metavar="X", help="Probability of a uniform action instead."
    )
    add = parser.add_argument_group("its output").add_argument
    add(
        "--video",
        type=Path,
        metavar="FILE",
        help=f"Video of one Atari game, of at most {_MOST_SECONDS} seconds: .gif, or .mp4 if "
        "imageio-ffmpeg is installed.",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file for scores, settings and versions.",
    )
    add_progress(add)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Play, print the scores, and return the exit code.

    0: done. 1: the model cannot be read or does not fit the game, or a file cannot be written.
    130: stopped by Ctrl-C. Wrong usage leaves with 2.
    """
    try:
        plan = _plan(arguments)
    except (ValueError, TypeError, OSError, ImportError) as error:
        arguments.usage_error(str(error))
    try:
        return _evaluate(plan, arguments)
    except (ValueError, TypeError, OSError) as error:
        print(f"rl-infonce evaluate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing was written.", file=sys.stderr)
        return 130


def _plan(arguments: argparse.Namespace) -> EvaluationPlan:
    """Return what is to be played, after checking that it can be written."""
    from rl_infonce.agents.saved_agent import env_of, find_model, game_of, run_of
    from rl_infonce.report.video import check_video_path
    from rl_infonce.runs.evaluation_file import check_output, try_to_write_beside
    from rl_infonce.training.evaluation import EvaluationPlan

    if arguments.video is not None:
        check_video_path(arguments.video)
        try_to_write_beside(arguments.video)
    if arguments.output is not None:
        check_output(arguments.output)
    path = find_model(arguments.model, best=arguments.best)
    run_dir, env = run_of(arguments.model), arguments.env or env_of(arguments.model)
    is_game = env is None or arguments.game is not None
    task = arguments.game or game_of(arguments.model) if is_game else env
    if is_game:
        _check_game(arguments, task)
    else:
        _check_run(arguments, run_dir)
        arguments.deterministic |= "deterministic" not in arguments.given
    names = ("n_episodes", "n_envs", "seed", "deterministic", "epsilon", "max_frames")
    given = {name: getattr(arguments, name) for name in names}
    return EvaluationPlan(path, run_dir, str(task), is_game, **given)


def _check_game(arguments: argparse.Namespace, game: str | None) -> None:
    from rl_infonce.agents.saved_agent import warn_of_another_game

    if game is None:
        raise ValueError(f"Expected `--game`: {arguments.model} is no run that names its game.")
    warn_of_another_game(arguments.model, game)


def _check_run(arguments: argparse.Namespace, run_dir: Path | None) -> None:
    if run_dir is None:
        raise ValueError(
            f"Expected the directory of a run with --env {arguments.env}, which says how the agent "
            f"is built, got {arguments.model} without run.json beside it."
        )
    unused = sorted({"epsilon", "max_frames", "video", "trust_pickle"} & arguments.given)
    if unused:
        flags = ", ".join(map(flag, unused))
        raise ValueError(f"Expected {flags} with Atari games alone. Leave it out.")


def _evaluate(plan: EvaluationPlan, arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from rl_infonce.files.durable import replace_json
    from rl_infonce.report.formatting import counted
    from rl_infonce.training.evaluation import evaluate_game, evaluate_run

    what = counted(plan.n_episodes, "episode")
    if plan.is_game:
        what = f"{counted(plan.n_episodes, 'game')} of {plan.task}"
    print(f"Playing {what} with {plan.model}", flush=True)
    with tqdm(total=plan.n_episodes, unit="game", disable=not shows_progress(arguments)) as bar:
        if plan.is_game:
            evaluation = evaluate_game(
                plan, trust_pickle=arguments.trust_pickle, show=lambda _episode: bar.update()
            )
        else:
            evaluation = evaluate_run(plan, show=lambda _episode: bar.update())
    _print_scores(evaluation)
    if arguments.output is not None:
        replace_json(arguments.output, evaluation.record(shlex.join(sys.argv)))
        print(f"Scores: {arguments.output}")
    if arguments.video is not None:
        seconds, goes_on = evaluation.write_video(arguments.video, most_seconds=_MOST_SECONDS)
        longer = " of a longer game" if goes_on else ""
        print(f"Video:  {arguments.video} ({seconds:.0f} s{longer})")
    return 0


def _print_scores(evaluation: Evaluation) -> None:
    from rl_infonce.report.formatting import counted, return_form
    from rl_infonce.runs.evaluation_file import mean_and_error

    plan, episodes = evaluation.plan, evaluation.episodes
    head = "game" if plan.is_game else "episode"
    returns = [episode.score for episode in episodes]
    each, form = (return_form(returns, usual) for usual in (".1f", ".2f"))
    print(f"{head:<7}{'return':>9} {'steps':>8}")
    for number, episode in enumerate(episodes, 1):
        cut = "  (cut)" if episode.is_cut and plan.is_game else ""
        print(f"{number:7d}{episode.score:9{each}} {episode.length:8d}{cut}")
    mean, error = mean_and_error(returns)
    spread = "" if error is None else f" +- {error:{form}} (standard error)"
    n_steps = sum(episode.length for episode in episodes)
    print(f"Mean return {mean:{form}}{spread}, {n_steps} steps in {evaluation.seconds:.0f} s")
    n_cut = sum(episode.is_cut for episode in episodes)
    if n_cut and plan.is_game:  # elsewhere the environment has its own limit
        advice = " The agent may wait for something: try --stochastic."
        print(
            f"{n_cut} of {counted(len(episodes), 'game')} cut after {plan.max_frames} frames."
            + (advice if plan.deterministic else "")
        )
