"""The command line `rl-infonce`: one file per subcommand, which parse, call and print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rl_infonce import __version__
from rl_infonce.cli import (
    collect,
    doctor,
    evaluate,
    pretrain,
    probe,
    pull,
    push,
    report,
    sweep,
    train,
)
from rl_infonce.cli.noting_parser import NotingParser

__all__ = ["main"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser: argparse.ArgumentParser = NotingParser(
        prog="rl-infonce", description="Temporal InfoNCE for stock Stable-Baselines3 agents."
    )
    parser.add_argument("--version", action="version", version=f"rl_infonce {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train.add_parser(subparsers)
    evaluate.add_parser(subparsers)
    collect.add_parser(subparsers)
    pretrain.add_parser(subparsers)
    probe.add_parser(subparsers)
    sweep.add_parser(subparsers)
    report.add_parser(subparsers)
    push.add_parser(subparsers)
    pull.add_parser(subparsers)
    doctor.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    Exit codes: 0 done, 1 failed (what was done is saved), 2 wrong usage, 75 stopped by a signal
    with a checkpoint to go on from (`train`, `sweep`), 130 stopped by Ctrl-C at once.

    Raises:
        SystemExit: With code 2 on wrong usage, with 0 after `--help` and `--version`.
    """
    arguments = make_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:  # where a subcommand has nothing to save
        print("Stopped.", file=sys.stderr)
        return 130
    return code
