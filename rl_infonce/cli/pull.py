"""`rl-infonce pull`: an encoder or an agent from the Hugging Face hub."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rl_infonce.cli.arguments import shown
from rl_infonce.hyperparameters import flag_words


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pull` and its flags."""
    parser = subparsers.add_parser(
        "pull",
        usage="%(prog)s OWNER/NAME [options]",
        example="rl-infonce pull me/pong -o pulled/pong",
        help="download an encoder or an agent from the Hugging Face hub",
        description="Download what `rl-infonce push` uploaded into a new folder: the known files "
        "of one commit, checked, all or none. No code in them is executed.",
    )
    add = parser.add_argument
    add("repo", metavar="OWNER/NAME", help="Repository.")
    add("-o", "--output", type=Path, metavar="FOLDER", help="New folder (NAME of the repository).")
    add("--revision", default="main", metavar="REV", help=shown("Commit, tag or branch"))
    add("--max-bytes", type=int, default=2**30, metavar="N", help=shown("Most bytes of all files"))
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Download, print the files, and return the exit code.

    0: done. 1: the hub refused or cannot be reached, or a file is not what it should be; URL and
    status are printed, and no folder appears. 130: stopped by Ctrl-C, without a folder.
    """
    from rl_infonce.hub import pull
    from rl_infonce.hub.client import check_repo

    try:
        check_repo(arguments.repo)
    except ValueError as error:
        arguments.usage_error(str(error))
    folder = arguments.output or Path(arguments.repo.rpartition("/")[2])
    try:
        pulled = pull(
            arguments.repo, folder, revision=arguments.revision, most_bytes=arguments.max_bytes
        )
    except (ValueError, OSError, ImportError) as error:
        print(f"rl-infonce pull: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing was kept.", file=sys.stderr)
        return 130
    for name, n_bytes in pulled.files.items():
        print(f"{pulled.folder / name} ({n_bytes:,} bytes)")
    if pulled.left_out:
        print(f"Left out: {len(pulled.left_out)} files that are not known here")
    again = ["rl-infonce", "pull", arguments.repo, "--revision", pulled.commit]
    given = {"max_bytes"} & arguments.given
    again += flag_words({name: getattr(arguments, name) for name in given})
    again += ["-o", f"{pulled.folder}-{pulled.commit[:8]}"]  # pull takes a new folder alone
    print(f"To get the same again: {shlex.join(again)}")
    return 0
