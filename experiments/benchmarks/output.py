"""How every benchmark ends: its tables are printed, and its summary is written if asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from rl_infonce.device import processor_name
from rl_infonce.runs.software import software


def machine(**more: Any) -> dict[str, Any]:
    """Return what ran a benchmark, and what more it says of that."""
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "git_commit": software()["git_commit"],
        **more,
    }


def save(summary: dict[str, Any], output: Path | None) -> None:
    """Write the summary as JSON, if there is a file for it, whose folder is made."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(summary, indent=2) + "\n")


def finish(summary: dict[str, Any], output: Path | None, *tables: str) -> None:
    """Save the summary and print its tables."""
    save(summary, output)
    print(*tables, sep="\n\n")
