"""`rl-infonce probe`: what do the features of saved models know about the game?"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.checks import check_number
from rl_infonce.cli.arguments import add_progress, game_argument, made_folder, shows_progress
from rl_infonce.runs.claim import held
from rl_infonce.scoring.defaults import LABELS, OTHER_PROTOCOLS, POLICIES, PROTOCOLS, SEEDS
from rl_infonce.scoring.feature_sources import MAJORITY, RANDOM

if TYPE_CHECKING:
    from rl_infonce.scoring.feature_sources import ProbedEncoder
    from rl_infonce.scoring.probe_runner import Plan
    from rl_infonce.scoring.scores_file import ScoresFile

_VIEWS = {"screen": (1, 210, 160), "agent": (4, 84, 84)}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `probe` and its flags."""
    parser = subparsers.add_parser(
        "probe",
        help="score what the features of saved models know about the game",
        description="Fit linear probes from frozen features to the variables in the emulator's "
        "RAM (Anand et al. 2019) and write scores.json and scores.md. Untrained weights of the "
        "same architecture and the majority class are always scored beside what is asked. Run "
        "again with the same --output to add encoders, games or seeds; what is done is kept.",
    )
    add = parser.add_argument
    add("--game", type=_game, nargs="+", required=True, metavar="GAME", help='names, or "all"')
    add(
        "--encoder",
        nargs="+",
        default=[RANDOM],
        metavar="FILE",
        help="models saved by SB3 (.zip), run directories, encoders (.safetensors), "
        f'"{RANDOM}" or "{MAJORITY}" ({RANDOM})',
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=list(SEEDS),
        metavar="N",
        help="of split and probe (0)",
    )
    add(
        "--protocol",
        nargs="+",
        default=list(PROTOCOLS),
        choices=PROTOCOLS + OTHER_PROTOCOLS,
        help="the two linear probes (default), knn (nearest neighbours: no training) and ridge "
        "(positions in pixels)",
    )
    add(
        "--min-episode-length",
        type=int,
        metavar="N",
        help="frames that an episode must have to be used (1; anand2019: 65, as published)",
    )
    add("--view", choices=tuple(_VIEWS), help="images (those the encoders read; screen if none)")
    add("--labels", default=LABELS, metavar="VERSION", help="of the variables (%(default)s)")
    add("--n-frames", type=int, metavar="N", help="per game (50000, or all of --frames)")
    add("--policy", choices=POLICIES, help="that plays while frames are collected (random)")
    add("--data-seed", type=int, metavar="N", help="of the games played (0)")
    add(
        "--frames",
        type=Path,
        metavar="DIR",
        help="of rl-infonce collect; what it lacks is played into it (a cache)",
    )
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of encoders (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (%(default)s)")
    add("-o", "--output", type=Path, default=Path("probes"), metavar="DIR", help="(%(default)s)")
    add_progress(add)
    add(
        "--trust-pickle",
        action="store_true",
        help="let model files that cannot be read safely execute the code they contain",
    )
    parser.set_defaults(run=run, usage_error=parser.error, default_of=parser.get_default)


def _game(name: str) -> str:
    return name if name == "all" else game_argument(name)


def run(arguments: argparse.Namespace) -> int:
    """Score every game, encoder, seed and protocol that the output folder lacks.

    Returns:
        0, or 1 if one of them failed (the others are scored) or scores could not be written, or
        130 after Ctrl-C.
    """
    with contextlib.ExitStack() as stack:
        try:
            games = _games(arguments.game, arguments.labels)
            asked, beside = _encoders(arguments)
            view = _view(arguments.view, asked)
            plan = _plan(arguments, games, view, [*asked, *beside(view)])
            made_folder("--output", arguments.output)
            way_out = " Wait for it, or choose another --output."
            stack.enter_context(held(arguments.output, "writes scores in it", way_out))
            scores = _scores_file(arguments.output, plan)
        except (ValueError, TypeError, OSError) as error:
            arguments.usage_error(str(error))
        code = _score(plan, games, scores, _command(arguments))
        print(f"Scores: {scores.path}\nTable:  {scores.table_path}")
        return code


def _plan(
    arguments: argparse.Namespace, games: list[str], view: str, encoders: list[ProbedEncoder]
) -> Plan:
    from rl_infonce.device import usable_device
    from rl_infonce.scoring.frame_source import find_frames
    from rl_infonce.scoring.probe_runner import Plan

    if arguments.min_episode_length is not None:
        check_number("--min-episode-length", arguments.min_episode_length, at_least=1)
    source = find_frames(
        games,
        arguments.frames,
        view,
        n_steps=arguments.n_frames,
        policy=arguments.policy and arguments.policy.replace("-", "_"),
        seed=arguments.data_seed,
    )
    return Plan(
        source=source,
        encoders={encoder.key: encoder for encoder in encoders},
        seeds=arguments.seeds,
        protocols=arguments.protocol,
        labels=arguments.labels,
        min_episode_length=arguments.min_episode_length,
        precision=arguments.precision,
        device=usable_device(arguments.device),
        progress=shows_progress(arguments),
        say=functools.partial(print, flush=True),
        complain=functools.partial(print, file=sys.stderr, flush=True),
    )


def _scores_file(folder: Path, plan: Plan) -> ScoresFile:
    from rl_infonce.scoring.scores_file import ScoresFile

    settings = {
        **plan.source.settings,
        "labels": plan.labels,
        "precision": plan.precision,
        "split_by": "game",  # scores of earlier versions, which split lives, do not compare
    }
    if plan.min_episode_length is not None:
        settings["min_episode_length"] = plan.min_episode_length
    return ScoresFile(folder, settings)


def _score(plan: Plan, games: list[str], scores: ScoresFile, command: str) -> int:
    from rl_infonce.scoring.probe_runner import probe_games

    try:
        return 0 if probe_games(plan, games, scores, command=command) else 1
    except KeyboardInterrupt:
        print("Stopped. Run the same command to go on.", file=sys.stderr)
        return 130
    except OSError as error:
        print(
            f"rl-infonce probe: {error}. Run the same command to go on when it can be written.",
            file=sys.stderr,
        )
        return 1


def _games(names: list[str], labels: str) -> list[str]:
    """Return the games asked for, once each, after checking that all have labels."""
    from rl_infonce.atari.labels import labelled_games, load_labels

    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys(labelled_games(labels) if name == "all" else [name])
    for game in found:
        load_labels(game, labels)
    return list(found)


def _encoders(arguments: argparse.Namespace) -> tuple[list[ProbedEncoder], Any]:
    """Return what is asked for, and a function from the view to what stands beside it."""
    from rl_infonce.scoring.feature_sources import majority, open_encoder, paper_encoder

    for seed in arguments.seeds:
        if seed < 0:
            raise ValueError(f"Expected `--seeds` to be at least 0, got {seed}.")
    asked, untrained = [], []
    for name in dict.fromkeys(arguments.encoder):
        if name not in (RANDOM, MAJORITY):
            trained, same_untrained = open_encoder(name, trust_pickle=arguments.trust_pickle)
            asked.append(trained)
            untrained.append(same_untrained)

    def beside(view: str) -> list[ProbedEncoder]:
        of_paper = [paper_encoder(view)] if RANDOM in arguments.encoder else []
        return [*untrained, *of_paper, majority()]

    return asked, beside


def _view(view: str | None, encoders: list[ProbedEncoder]) -> str:
    """Return the images to collect, which every encoder must be able to read."""
    shapes: dict[Any, str] = {shape: name for name, shape in _VIEWS.items()}
    if view is None:
        read = (shapes.get(encoder.image_shape) for encoder in encoders if encoder.image_shape)
        view = next((name for name in read if name is not None), "agent" if encoders else "screen")
    for encoder in encoders:
        if encoder.image_shape != _VIEWS[view]:
            raise ValueError(
                f"Expected {encoder.name} to read images of shape {_VIEWS[view]}, those of --view "
                f"{view}, got an encoder of observations of shape {encoder.image_shape}. "
                f"{_other_view(shapes, encoder)}"
            )
    return view


def _other_view(shapes: dict[Any, str], encoder: ProbedEncoder) -> str:
    fitting = shapes.get(encoder.image_shape)
    if fitting is None:
        return "Train on rl_infonce.make_atari_vec_env, or probe it in Python."
    return f"Use --view {fitting}, and another --output for each view."


def _command(arguments: argparse.Namespace) -> str:
    """Return the command line, with what is not default."""
    words = ["rl-infonce", "probe"]
    for name, value in vars(arguments).items():
        is_flag = name in arguments.given and name != "command"
        if not is_flag or value == arguments.default_of(name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-"))
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
