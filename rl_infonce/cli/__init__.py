"""The command line `rl-infonce`: one file per subcommand, which parse, call and print."""

from __future__ import annotations

import argparse
import contextlib
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
from rl_infonce.cli.completion import PrintCompletion
from rl_infonce.cli.noting_parser import NotingParser
from rl_infonce.cli.output import lasting_output, plain_warnings, silence

__all__ = ["main"]

_COMMANDS = (train, evaluate, collect, pretrain, probe, sweep, report, push, pull, doctor)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser: argparse.ArgumentParser = NotingParser(
        prog="rl-infonce",
        description="Temporal InfoNCE for stock Stable-Baselines3 agents.",
        example="rl-infonce train --game pong",
    )
    parser.add_argument("--version", action="version", version=f"rl_infonce {__version__}")
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        metavar="SHELL",
        help="print what completes commands and flags in a shell, e.g. bash",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    0: done. 1: failed; what was done is saved. 2: wrong usage, as a SystemExit. 75: stopped by a
    signal with a checkpoint to go on from (`train`, `sweep`). 130: stopped by Ctrl-C at once.
    Output that cannot be written ends nothing; unless its reader left a pipe, the code is 1 then.
    """
    with lasting_output() as output, plain_warnings():
        arguments = make_parser().parse_args(argv)
        is_quiet = getattr(arguments, "quiet", False)  # which a few commands are never
        try:
            with silence() if is_quiet else contextlib.nullcontext():
                code: int = arguments.run(arguments)
        except KeyboardInterrupt:  # where a subcommand has nothing to save
            print("Stopped.", file=sys.stderr)
            code = 130
    if output.error is not None and not isinstance(output.error, BrokenPipeError):
        print(f"rl-infonce: not all output was written: {output.error}", file=sys.stderr)
        return code or 1
    return code
