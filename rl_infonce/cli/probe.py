"""`rl-infonce probe`: what do the features of saved models know about the game?"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.cli.arguments import (
    add_progress,
    add_trust_pickle,
    game_argument,
    shown,
    shows_progress,
)
from rl_infonce.hyperparameters import flag_words
from rl_infonce.runs.claim import held
from rl_infonce.runs.run_directory import made_folder
from rl_infonce.scoring.defaults import LABELS, OTHER_PROTOCOLS, POLICIES, PROTOCOLS, SEEDS
from rl_infonce.scoring.feature_sources import MAJORITY, RANDOM

if TYPE_CHECKING:
    from rl_infonce.scoring.probe_runner import Plan
    from rl_infonce.scoring.scores_file import ScoresFile


_FOR_ATARI = "Expected Atari games: probes read their labels from a game's RAM"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `probe` and its flags."""
    parser = subparsers.add_parser(
        "probe",
        usage="%(prog)s --game GAME [GAME ...] [options]",
        example="rl-infonce probe --game pong --features-of runs/pong/model.zip -o probes/pong",
        help="score what the features of saved models know about the game",
        description="Fit linear probes from frozen features to the variables in the emulator's "
        "RAM (Anand et al. 2019) and write scores.json and scores.md. Untrained weights of the "
        "same architecture and the majority class are always scored beside what is asked. Run "
        "again with the same --output to add encoders, games or seeds; what is done is kept.",
    )
    add = parser.add_argument_group("what is scored").add_argument
    add(
        "--game",
        type=_game,
        nargs="+",
        required=True,
        metavar="GAME",
        help='Games, in any spelling, or "all".',
    )
    add(
        "--features-of",
        nargs="+",
        metavar="FILE",
        default=[RANDOM],
        help="Models saved by SB3 (.zip), run directories, encoders (.safetensors), "
        f'"{RANDOM}" or "{MAJORITY}" ({RANDOM}).',
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=list(SEEDS),
        metavar="N",
        help="Seeds of the split, the untrained weights and the probe (0).",
    )
    add = parser.add_argument_group("how it is scored").add_argument
    add(
        "--protocol",
        nargs="+",
        default=list(PROTOCOLS),
        choices=PROTOCOLS + OTHER_PROTOCOLS,
        help="The two linear probes, which are the default, knn (nearest neighbours, without "
        "training) and ridge (positions in pixels).",
    )
    add(
        "--min-episode-length",
        type=int,
        metavar="N",
        help="Frames that an episode must have to be used (1; anand2019: 65, as published).",
    )
    add(
        "--view",
        choices=("screen", "agent"),
        help="Images to probe (those that the encoders read; screen without an encoder).",
    )
    add("--labels", default=LABELS, metavar="VERSION", help=shown("Version of the variables"))
    add = parser.add_argument_group("frames").add_argument
    add("--n-frames", type=int, metavar="N", help="Frames per game (50000, or all of --frames).")
    add("--policy", choices=POLICIES, help="Policy that plays to collect frames (random).")
    add("--data-seed", type=int, metavar="N", help="Seed of the games that are played (0).")
    add(
        "--frames",
        type=Path,
        metavar="DIR",
        help="Folder of rl-infonce collect; missing frames are played into it (a cache).",
    )
    add = parser.add_argument_group("where it runs, and its output").add_argument
    add(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help=shown("Precision of the encoders"),
    )
    add("--device", default="auto", help=shown("Device, e.g. auto, cpu, cuda or cuda:1"))
    add(
        "-o",
        "--output",
        type=Path,
        default=Path("probes"),
        metavar="DIR",
        help=shown("Folder of scores.json and scores.md"),
    )
    add_progress(add)
    add_trust_pickle(add)
    parser.set_defaults(run=run, usage_error=parser.error, default_of=parser.get_default)


def _game(name: str) -> str:
    if name == "all":
        return name
    from rl_infonce.environments.ids import is_no_game

    if is_no_game(name):
        raise argparse.ArgumentTypeError(f"{_FOR_ATARI}, got the environment {name}.")
    return game_argument(name)


def run(arguments: argparse.Namespace) -> int:
    """Score every game, encoder, seed and protocol that the output folder lacks.

    Return 0; 1 if one of them failed (the others are scored) or scores could not be written; 130
    after Ctrl-C.
    """
    from rl_infonce.scoring.scores_file import ScoresFile

    with contextlib.ExitStack() as stack:
        try:
            plan = _plan(arguments)
            made_folder("--output", arguments.output)
            way_out = " Wait for it, or choose another --output."
            stack.enter_context(held(arguments.output, "writes scores in it", way_out))
            scores = ScoresFile(arguments.output, plan.settings)
        except (ValueError, TypeError, OSError) as error:
            arguments.usage_error(str(error))
        code = _score(plan, scores, _command(arguments))
        print(f"Scores: {scores.path}\nTable:  {scores.table_path}")
        return code


def _plan(arguments: argparse.Namespace) -> Plan:
    from rl_infonce.scoring.frame_source import find_games

    games = find_games(arguments.game, arguments.labels)
    from rl_infonce.agents.saved_agent import env_of  # it imports torch, which takes a while
    from rl_infonce.scoring.probe_plan import make_plan

    for source in arguments.features_of:
        env = None if source in (RANDOM, MAJORITY) else env_of(Path(source))
        if env is not None:
            raise ValueError(f"{_FOR_ATARI}, got {source}, which was trained on {env}.")

    names = {"seeds", "labels", "frames", "view", "n_frames", "data_seed", "min_episode_length"}
    names |= {"precision", "device", "trust_pickle"}
    given = {name: getattr(arguments, name) for name in names}
    return make_plan(
        games,
        arguments.features_of,
        **given,
        protocols=arguments.protocol,
        policy=arguments.policy and arguments.policy.replace("-", "_"),
        progress=shows_progress(arguments),
        say=functools.partial(print, flush=True),
        complain=functools.partial(print, file=sys.stderr, flush=True),
    )


def _score(plan: Plan, scores: ScoresFile, command: str) -> int:
    from rl_infonce.scoring.probe_runner import probe_games

    try:
        return 0 if probe_games(plan, scores, command=command) else 1
    except KeyboardInterrupt:
        print("Stopped. Run the same command to go on.", file=sys.stderr)
        return 130
    except OSError as error:
        print(
            f"rl-infonce probe: {error}. Run the same command to go on when it can be written.",
            file=sys.stderr,
        )
        return 1


def _command(arguments: argparse.Namespace) -> str:
    """Return the command line without defaults."""
    flags = {
        name: value
        for name, value in vars(arguments).items()
        if name in arguments.given - {"command"} and value != arguments.default_of(name)
    }
    return shlex.join(["rl-infonce", "probe", *flag_words(flags)])
