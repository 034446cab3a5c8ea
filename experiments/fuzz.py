"""Do the parsers of outside files ever raise anything but their documented errors?

Coverage-guided fuzzing with atheris (`pip install atheris`; Linux and macOS) of every format that
the package reads: a good file is patched or replaced, with digests that no longer agree or, as an
attacker would, with digests that do. An error that is not documented, or whose message does not
name the file, ends a format's process; the input is kept in --crashes.

    python experiments/fuzz.py --minutes 2 --output experiments/results/fuzz.json
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the formats are those of the tests

FORMATS = ("model", "encoder", "pretraining", "run", "record", "log", "frames", "scores")
STATISTICS = {"inputs": r"number_of_executed_units: (\d+)", "peak_mb": r"peak_rss_mb: +(\d+)"}
COVERAGE = re.compile(r"cov: (\d+)")


def fuzz(name: str, seconds: int, crashes: Path) -> None:
    """Fuzz one format until an error or for a time; never returns."""
    import atheris

    with atheris.instrument_imports(include=["rl_infonce"]):
        from tests.attacks.place import Place

    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp()) / name
    place = Place(name, folder)
    files = sorted(place.files)

    def one_input(data: bytes) -> None:
        drawn = atheris.FuzzedDataProvider(data)
        file = files[drawn.ConsumeIntInRange(0, len(files) - 1)]
        forged = drawn.ConsumeBool()
        place.check({file: changed(place.files[file], drawn)}, forged=forged)

    flags = [f"-max_total_time={seconds}", "-print_final_stats=1", "-rss_limit_mb=4096"]
    flags += ["-max_len=4096", "-timeout=60", "-seed=1", f"-artifact_prefix={crashes / name}-"]
    atheris.Setup([sys.argv[0], *flags], one_input)
    atheris.Fuzz()


def changed(content: bytes, drawn: Any) -> bytes:
    """Return a file with some bytes cut out and others put in, or another one."""
    if drawn.ConsumeBool():
        return bytes(drawn.ConsumeBytes(drawn.remaining_bytes()))
    for _ in range(drawn.ConsumeIntInRange(1, 4)):
        place = drawn.ConsumeIntInRange(0, len(content))
        if drawn.ConsumeBool():  # headers are at the front
            place = min(place, drawn.ConsumeIntInRange(0, 400))
        end = place + drawn.ConsumeIntInRange(0, 16)
        content = content[:place] + drawn.ConsumeBytes(16) + content[end:]
    return content


def fuzz_in_process(name: str, seconds: int, crashes: Path) -> dict[str, Any]:
    """Return what became of a format."""
    command = [sys.executable, __file__, "--format", name, "--minutes", str(seconds / 60)]
    done = subprocess.run(
        [*command, "--crashes", str(crashes)], check=False, capture_output=True, text=True
    )
    found: dict[str, Any] = {"is_clean": done.returncode == 0}
    for what, pattern in STATISTICS.items():
        match = re.search(pattern, done.stderr)
        found[what] = None if match is None else int(match[1])
    found["branches"] = max(map(int, COVERAGE.findall(done.stderr)), default=0)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
    return found


def table(formats: dict[str, dict[str, Any]]) -> str:
    """Return the counts as Markdown."""
    lines = ["| format | inputs | branches reached | undocumented errors |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {found['inputs']:,} | {found['branches']} | {int(not found['is_clean'])} |"
        for name, found in formats.items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Fuzz all formats, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2, help="minutes for each format")
    parser.add_argument("--format", choices=FORMATS, help="fuzz this format alone, in this process")
    parser.add_argument("--crashes", type=Path, default=Path("crashes"))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    seconds = int(60 * arguments.minutes)
    if arguments.format is not None:
        fuzz(arguments.format, seconds, arguments.crashes)
    arguments.crashes.mkdir(exist_ok=True)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
    from rl_infonce.runs.software import software

    found = {name: fuzz_in_process(name, seconds, arguments.crashes) for name in FORMATS}
    content = {**software(), "atheris": version("atheris"), "seconds": seconds, "formats": found}
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    print(table(found))
    sys.exit(not all(each["is_clean"] for each in found.values()))


if __name__ == "__main__":
    main()
