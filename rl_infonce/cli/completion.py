"""What completes commands and flags in a shell."""

from __future__ import annotations

import argparse
from typing import Any


class PrintCompletion(argparse.Action):
    """Print a script for a shell, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the script of the shell that was named."""
        try:
            import shtab
        except ImportError:
            parser.error(
                f"{option_string} needs shtab. Install it with "
                '`pip install "rl-infonce[completion]"`.'
            )
        if values not in shtab.SUPPORTED_SHELLS:
            from rl_infonce.checks import did_you_mean

            shells = ", ".join(shtab.SUPPORTED_SHELLS)
            parser.error(
                f"Expected {option_string} to be one of {shells}, got {values!r}."
                f"{did_you_mean(values, shtab.SUPPORTED_SHELLS)}"
            )
        print(shtab.complete(parser, values))
        parser.exit()
