"""`rl-infonce collect`: frames of an Atari game with RAM labels, for probing."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rl_infonce.cli.arguments import add_game, add_progress, add_trust_pickle, shown, shows_progress
from rl_infonce.runs.run_directory import made_folder

if TYPE_CHECKING:
    from rl_infonce.atari.playing import Policy

_RANDOM = ("random", "random-without-noop")
_VIEWS = ("screen", "agent")
_EPSILON = 0.2  # Anand et al. 2019


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `collect` and its flags."""
    parser = subparsers.add_parser(
        "collect",
        usage="%(prog)s --game GAME -o FOLDER [options]",
        example="rl-infonce collect --game pong -n 50000 -o frames/pong",
        help="collect frames of an Atari game with RAM labels",
        description="Play an Atari game and keep its images, RAM and episode ids in FOLDER. Call "
        "again with the same flags to complete what was interrupted.",
    )
    add = parser.add_argument_group("what is played, and its folder").add_argument
    add_game(add)
    add("-n", "--n-steps", type=int, default=50_000, metavar="N", help=shown("Agent steps to play"))
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="Folder of the frames, new or to be completed.",
    )
    add(
        "--policy",
        default="random",
        metavar="NAME",
        help="Policy that plays: random, random-without-noop (that of Anand et al. 2019), or the "
        "model.zip or the run directory of a PPO, A2C or DQN agent (random).",
    )
    add(
        "--epsilon",
        type=float,
        metavar="X",
        help=f"Probability of a uniform action instead of the agent's ({_EPSILON}).",
    )
    add(
        "--deterministic",
        action="store_true",
        help="Take the agent's most probable action instead of sampling.",
    )
    add_trust_pickle(add)
    add = parser.add_argument_group("its frames").add_argument
    add("--seed", type=int, default=0, metavar="N", help=shown("Seed, 0 or more"))
    add("--n-shards", type=int, default=8, metavar="N", help=shown("Emulators, one per shard"))
    add(
        "--views",
        nargs="+",
        choices=_VIEWS,
        default=list(_VIEWS),
        metavar="VIEW",
        help="Images to keep: screen (210x160, gray), agent (84x84, stacked when read) (both).",
    )
    add = parser.add_argument_group("how it runs").add_argument
    add("--n-workers", type=int, metavar="N", help="Processes (one per core).")
    add_progress(add)
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Collect, print where the frames are, and return the exit code.

    0: done. 1: failed, with one line that says why (a folder of other settings, a damaged shard or
    model, a full disk); finished shards are kept. 130: stopped by Ctrl-C; they are kept also. Wrong
    usage leaves with 2.
    """
    from rl_infonce.atari.collect import collect

    _check_usage(arguments)
    start = time.perf_counter()
    try:
        policy, policy_name = _policy(arguments)
        made_folder("--output", arguments.output)
        frames = collect(
            arguments.game,
            arguments.n_steps,
            folder=arguments.output,
            policy=policy,
            policy_name=policy_name,
            seed=arguments.seed,
            n_shards=arguments.n_shards,
            views=arguments.views,
            n_workers=arguments.n_workers,
            progress=shows_progress(arguments),
        )
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"rl-infonce collect: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"Stopped. Finished shards are kept in {arguments.output}; the same command goes on.",
            file=sys.stderr,
        )
        return 130
    seconds = time.perf_counter() - start
    print(f"{len(frames)} states of {frames.game} in {arguments.output} ({seconds:.0f} s)")
    print(f"Read:  rl_infonce.atari.load_frames({str(arguments.output)!r})")
    return 0


def _check_usage(arguments: argparse.Namespace) -> None:
    """Leave with code 2 if a flag is out of range or does not fit the others."""
    from rl_infonce.checks import check_number

    try:
        check_number("--n-shards", arguments.n_shards, at_least=1)
        check_number("--n-steps", arguments.n_steps, at_least=arguments.n_shards)
        check_number("--seed", arguments.seed, at_least=0)
        if arguments.n_workers is not None:
            check_number("--n-workers", arguments.n_workers, at_least=1)
        if arguments.epsilon is not None:
            check_number("--epsilon", arguments.epsilon, at_least=0, at_most=1)
        if len(set(arguments.views)) != len(arguments.views):
            raise ValueError(f"Expected distinct `--views`, got {' '.join(arguments.views)}.")
        _check_policy(arguments)
    except ValueError as error:
        arguments.usage_error(str(error))


def _check_policy(arguments: argparse.Namespace) -> None:
    if arguments.policy in _RANDOM:
        if arguments.epsilon is not None or arguments.deterministic or arguments.trust_pickle:
            raise ValueError(
                "Expected `--policy` to be a model beside --epsilon, --deterministic or "
                f"--trust-pickle, got {arguments.policy}."
            )
    elif not Path(arguments.policy).exists():
        from rl_infonce.checks import did_you_mean

        raise ValueError(
            f"Expected `--policy` to be {', '.join(_RANDOM)}, the file of a saved model or the "
            f"directory of its run, got {arguments.policy!r}."
            f"{did_you_mean(arguments.policy, _RANDOM)}"
        )


def _policy(arguments: argparse.Namespace) -> tuple[str | Policy, str | None]:
    """Return what acts, and the name by which the folder knows a model: its file's hash."""
    if arguments.policy in _RANDOM:
        return arguments.policy.replace("-", "_"), None
    from rl_infonce.agents.saved_agent import named_player, warn_of_another_game

    warn_of_another_game(Path(arguments.policy), arguments.game)
    return named_player(
        Path(arguments.policy),
        _EPSILON if arguments.epsilon is None else arguments.epsilon,
        arguments.seed,
        deterministic=arguments.deterministic,
        trust_pickle=arguments.trust_pickle,
    )
