"""`rl-infonce push`: an encoder or an agent onto the Hugging Face hub, with a model card."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl_infonce.cli.arguments import game_argument


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `push` and its flags."""
    parser = subparsers.add_parser(
        "push",
        usage="%(prog)s OWNER/NAME [--encoder FILE] [--model PATH] [options]",
        example="rl-infonce push me/pong --model runs/pong",
        help="upload an encoder or an agent to the Hugging Face hub",
        description="Upload an encoder, an agent, or both, to a repository of the Hugging Face "
        "hub, with a model card that says what they score, how they were made, and how to read "
        "them without executing code. Log in first: `hf auth login`.",
    )
    add = parser.add_argument
    add("repo", metavar="OWNER/NAME", help="Repository; it is made if there is none.")
    add("--encoder", type=Path, metavar="FILE", help="encoder.safetensors of rl-infonce pretrain.")
    add(
        "--model",
        type=Path,
        metavar="PATH",
        help="An agent of images saved by SB3, or the directory of its run.",
    )
    add("--best", action="store_true", help="Take the run's model whose episodes returned most.")
    add("--game", "--env", type=game_argument, help="Game (that of the run or the evaluation).")
    add("--evaluation", type=Path, metavar="FILE", help="File of rl-infonce evaluate --output.")
    add("--scores", type=Path, metavar="FILE", help="scores.json of rl-infonce probe.")
    add("--private", action="store_true", help="Make a new repository private.")
    add("--dry-run", action="store_true", help="Print card and files; upload nothing.")
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Upload, print where, and return the exit code.

    0: done. 1: the hub refused or cannot be reached; its URL and status are printed. Wrong usage,
    such as scores of another model, leaves with 2.
    """
    from rl_infonce.agents.saved_agent import warn_of_another_game
    from rl_infonce.hub import make_bundle, push
    from rl_infonce.hub.client import check_repo
    from rl_infonce.hub.files import CARD
    from rl_infonce.hub.push import files_to_push

    try:
        check_repo(arguments.repo)
        if arguments.model is not None and arguments.game is not None:
            warn_of_another_game(arguments.model, arguments.game)
        bundle = make_bundle(
            encoder=arguments.encoder,
            model=arguments.model,
            best=arguments.best,
            game=arguments.game,
            evaluation=arguments.evaluation,
            scores=arguments.scores,
        )
    except (ValueError, TypeError, OSError) as error:
        arguments.usage_error(str(error))
    try:
        if arguments.dry_run:
            files = files_to_push(arguments.repo, bundle)
            print(files.pop(CARD).decode())
            for name, content in files.items():
                print(f"{name}: {len(content):,} bytes")
            return 0
        url = push(arguments.repo, bundle, private=arguments.private)
    except (ValueError, OSError, ImportError) as error:
        print(f"rl-infonce push: {error}", file=sys.stderr)
        return 1
    print(f"Pushed: {url}")
    return 0
