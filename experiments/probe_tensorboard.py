"""What does ProbeCallback look like in TensorBoard? Trains on Pong, opens the pages, keeps them.

Needs a Chromium and its driver library: `pip install --group test`.

    python experiments/probe_tensorboard.py --output experiments/results/probe_tensorboard
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from stable_baselines3 import PPO

from rl_infonce import InfoNCEExtractor, ProbeCallback, make_atari_vec_env
from rl_infonce.training.rl_zoo import constant_ppo

MAX_BYTES = 150_000
WAIT_MS = 12_000
PAGES = {
    "curves": "#custom_scalars",
    "scalars": "?tagFilter=%5Eprobe%2F#timeseries",
    "figures": "#images",
    "projector": "#projector",
}


def train(folder: Path, n_steps: int, callback: ProbeCallback) -> None:
    """Train one run whose curves land in `folder`."""
    model = PPO(
        "CnnPolicy",
        make_atari_vec_env("pong", n_envs=8, seed=0),
        **constant_ppo(),
        policy_kwargs={"features_extractor_class": InfoNCEExtractor, "net_arch": []},
        tensorboard_log=str(folder),
        seed=0,
    )
    model.learn(n_steps, callback=callback)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder's curves on loopback, and yield the address."""
    # from the folder above, so that the page shows a short name
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--port", "0"]
    command += ["--host", "127.0.0.1", "--load_fast", "false"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder.parent, stderr=pipe, text=True) as server:
        try:
            assert server.stderr is not None  # noqa: S101 (it is a pipe)
            for line in server.stderr:
                found = re.search(r"http://[\w.]+:\d+/", line)
                if found:
                    yield found.group()
                    return
            raise RuntimeError("TensorBoard ended before it served a page.")
        finally:
            server.terminate()


def chromium() -> str:
    """Return the path of a Chromium on this machine.

    Raises:
        FileNotFoundError: If there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("Expected a Chromium on PATH, got none. Install the package chromium.")


def photograph(address: str, pages: dict[str, str], output: Path) -> list[Path]:
    """Open pages of TensorBoard and keep a picture of each."""
    from playwright.sync_api import sync_playwright

    output.mkdir(parents=True, exist_ok=True)
    paths = []
    with sync_playwright() as driver:
        # the projector draws with WebGL, here without a graphics card
        arguments = ["--no-sandbox", "--disable-background-networking", "--use-angle=swiftshader"]
        arguments += ["--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
        browser = driver.chromium.launch(executable_path=chromium(), args=arguments)
        for name, page_address in pages.items():
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address + page_address)
            _prepare(page, name)
            picture = page.screenshot()
            paths.append(output / f"{name}.png")
            paths[-1].write_bytes(small_png(picture))
            page.close()
        browser.close()
    return paths


def _prepare(page: Any, name: str) -> None:
    """Wait for a page, and unfold or choose what it keeps closed."""
    page.wait_for_timeout(WAIT_MS)
    if name == "curves":
        page.locator(".toggle-matches-button").first.click()
    elif name == "scalars":
        page.get_by_role("button", name="Settings").first.click()
    elif name == "projector":
        projector = next(f for f in page.frames if f.url.endswith("projector_binary.html"))
        projector.locator('paper-dropdown-menu[label="Color by"]').click()
        projector.locator("paper-item:visible", has_text="ball_y").first.click()
    page.mouse.move(0, 0)  # no tooltip in the picture
    page.wait_for_timeout(WAIT_MS // 4)


def small_png(picture: bytes) -> bytes:
    """Return a picture with at most 256 colours, and fewer if it would not fit `MAX_BYTES`."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for n_colours in (256, 128, 64, 32):
        stream = io.BytesIO()
        image.quantize(n_colours).save(stream, "PNG", optimize=True)
        if len(stream.getvalue()) <= MAX_BYTES:
            break
    return stream.getvalue()


def main() -> None:
    """Parse the command line, train, and photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--n-steps", type=int, default=24_576)
    parser.add_argument("--logdir", type=Path, help="photograph this run instead of training one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logdir = args.logdir or Path(folder) / "logs"
        if args.logdir is None:
            train(logdir, args.n_steps, ProbeCallback("pong", 384, projector=True))
        with served(logdir) as address:
            for path in photograph(address, PAGES, args.output):
                print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
