"""How large is the package, and how long do its import and its help take?

Builds the wheel and the source distribution of two commits, has twine check both, and alternates
imports and commands with each wheel, beside the packages that are installed. Needs uv, which
`pip install uv` installs, for twine.

    python experiments/start_up.py --output experiments/results/start_up.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from checkouts import checked_out, last_commit

from rl_infonce.device import processor_name
from rl_infonce.files.durable import replace_text
from rl_infonce.report.table import markdown_table
from rl_infonce.runs.software import software

BEFORE = "7f6ee733"
"""The last commit before vectors, presets of regimes and the release were begun."""
SIZES = {"wheel": "*.whl", "source distribution": "*.tar.gz"}
TIMED = {
    "python -c pass": ("python", "-c", "pass"),
    "import torch": ("python", "-c", "import torch"),
    "import stable_baselines3": ("python", "-c", "import stable_baselines3"),
    "import stable_baselines3, torch._dynamo": (
        *("python", "-c"),
        "import stable_baselines3, torch._dynamo",
    ),
    "import rl_infonce": ("python", "-c", "import rl_infonce"),
    "InfoNCEExtractor": ("python", "-c", "from rl_infonce import InfoNCEExtractor"),
    "rl-infonce --help": ("rl-infonce", "--help"),
    "rl-infonce train --help": ("rl-infonce", "train", "--help"),
}
"""What is timed -> command."""


def installed(checkout: Path, folder: Path) -> dict[str, int]:
    """Build, check and unpack the wheel of a checkout into a folder, and return sizes in bytes."""
    built = checkout / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(built)]
    subprocess.run(build, cwd=checkout, check=True, capture_output=True)
    paths = {name: next(built.glob(pattern)) for name, pattern in SIZES.items()}
    files = [str(path) for path in paths.values()]
    subprocess.run(["uvx", "--quiet", "twine", "check", "--strict", *files], check=True)
    wheel = str(paths["wheel"])
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, str(folder), wheel], check=True, capture_output=True)
    return {name: path.stat().st_size for name, path in paths.items()}


def seconds(command: tuple[str, ...], folder: Path) -> float:
    """Return how long a command takes with the package of a folder."""
    program = sys.executable if command[0] == "python" else str(folder / "bin" / command[0])
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    start = time.perf_counter()
    subprocess.run(
        [program, *command[1:]], env=environment, cwd=folder, check=True, capture_output=True
    )
    return time.perf_counter() - start


def measured(commits: dict[str, str], n_rounds: int) -> dict[str, Any]:
    """Return the sizes and the times of each commit; a round before the first one warms up."""
    with tempfile.TemporaryDirectory() as name:
        folders = {each: Path(name) / each / "installed" for each in commits}
        sizes = {
            each: installed(checked_out(commit, Path(name) / each / "code"), folders[each])
            for each, commit in commits.items()
        }
        times: dict[str, dict[str, list[float]]] = {e: {t: [] for t in TIMED} for e in commits}
        for number in range(n_rounds + 1):
            for timed, command in TIMED.items():
                for each, folder in folders.items():
                    taken = seconds(command, folder)
                    times[each][timed] += [taken] if number else []
    return {"bytes": sizes, "seconds": times}


def table(summary: dict[str, Any]) -> str:
    """Return sizes and median times before and now as Markdown."""
    before, now = (summary["bytes"][each] for each in ("before", "now"))
    lines = [[name, *(f"{each[name] / 1000:.0f} kB" for each in (before, now))] for name in SIZES]
    for timed in TIMED:
        taken = [statistics.median(summary["seconds"][each][timed]) for each in ("before", "now")]
        lines.append([f"`{timed}`", *(f"{each:.3f} s" for each in taken)])
    return markdown_table(["", f"before ({summary['commits']['before'][:8]})", "now"], lines)


def main() -> None:
    """Measure both commits, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", default=BEFORE, help="commit to compare with")
    parser.add_argument("--n-rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    commits = {"before": arguments.before, "now": last_commit()}
    summary = {"versions": software()["versions"], "hardware": processor_name()}
    summary |= {"commits": commits} | measured(commits, arguments.n_rounds)
    replace_text(arguments.output, json.dumps(summary, indent=1) + "\n")
    print(table(summary))


if __name__ == "__main__":
    main()
