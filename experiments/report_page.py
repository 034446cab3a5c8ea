"""What does the page of a report look like? Makes one from committed runs, and keeps pictures.

Needs a Chromium and its driver library: `pip install --group test`.

    python experiments/report_page.py --output experiments/results/report_page
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from checkouts import RESULTS
from probe_tensorboard import chromium, small_png

STUDY = RESULTS / "ppo_arms"
SCREENS = {
    "desktop": (1280, 900, "Sweep ppo_arms"),
    "phone": (390, 844, "PPO: performance profile"),
}
"""Name of each picture -> width and height in CSS pixels, and the heading at its top."""


def photograph(page: Path, output: Path) -> list[Path]:
    """Open a page on each screen, and keep what is seen below a heading."""
    from playwright.sync_api import sync_playwright

    output.mkdir(parents=True, exist_ok=True)
    paths = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, (width, height, heading) in SCREENS.items():
            screen = browser.new_page(viewport={"width": width, "height": height})
            screen.goto(page.resolve().as_uri())
            place = screen.get_by_role("heading", name=heading, exact=True)
            place.evaluate("heading => heading.scrollIntoView()")
            paths.append(output / f"{name}.png")
            paths[-1].write_bytes(small_png(screen.screenshot()))
            screen.close()
        browser.close()
    return paths


def main() -> None:
    """Report the study, and photograph its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    command = str(Path(sys.executable).with_name("rl-infonce"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [command, "report", str(STUDY), "-o", folder, "--mixed-versions"], check=True
        )
        for path in photograph(Path(folder) / "report.html", arguments.output):
            print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
