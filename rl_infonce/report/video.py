"""Images as a video: GIF with Pillow, MP4 with ffmpeg where it is installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

_MP4_SCALE = 2  # players smear the single pixels of a small video


def check_video_path(path: str | os.PathLike[str]) -> None:
    """Raise unless `write_video` could write this file, before anything is played for it."""
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise ValueError(f"Expected a video to end in .gif or .mp4, got {path}.")
    if path.suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ImportError(
            'MP4 needs imageio-ffmpeg. Install it with `pip install "rl-infonce[video]"`, or write '
            "a .gif."
        )
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected a folder for {path}, got none there.")


def write_video(
    path: str | os.PathLike[str],
    images: Iterable[Image],
    *,
    frames_per_second: float,
    most: int | None = None,
) -> int:
    """Write images [H, W, 3] of one size, at least one, in one move and return how many.

    The path is one that passed `check_video_path`. A .gif is shown by any browser, its colours
    exact if an image has at most 256 of them; the time between two of its images is rounded to
    1/100 s. A .mp4 has a tenth of the size. A file of that name is replaced, and stays if the new
    one cannot be written. Images are taken one by one, at most `most` of them.
    """
    path = Path(path)
    shown = itertools.islice(images, most)
    first = next(shown)
    n_written = 0

    def counted() -> Iterator[Image]:
        nonlocal n_written
        for image in itertools.chain([first], shown):
            n_written += 1
            yield image

    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        whole = Path(folder) / path.name
        _WRITERS[path.suffix](whole, counted(), first.shape[:2], frames_per_second)
        os.replace(whole, path)
    return n_written


def _write_gif(path: Path, images: Iterable[Image], _size: Any, frames_per_second: float) -> None:
    from PIL import Image as pillow

    frames = (
        pillow.fromarray(image).convert("P", palette=pillow.Palette.ADAPTIVE, colors=256)
        for image in images
    )
    duration = 10 * max(round(100 / frames_per_second), 2)  # browsers slow down below 20 ms
    next(frames).save(path, save_all=True, append_images=frames, duration=duration, loop=0)


def _write_mp4(
    path: Path, images: Iterable[Image], size: tuple[int, int], frames_per_second: float
) -> None:
    import imageio_ffmpeg

    height, width = (_MP4_SCALE * side for side in size)
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=frames_per_second,
        macro_block_size=2,
        ffmpeg_log_level="error",
    )
    with contextlib.closing(writer):
        writer.send(None)
        for image in images:
            writer.send(image.repeat(_MP4_SCALE, 0).repeat(_MP4_SCALE, 1).tobytes())


_WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}
