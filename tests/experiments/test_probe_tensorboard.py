"""The screenshots of TensorBoard: small enough to keep, and of what the callback writes."""

import io

import numpy as np
from PIL import Image

from tests.experiments.loading import load


def test_pictures_fit_and_keep_their_size() -> None:
    script = load("probe_tensorboard.py")
    rng = np.random.default_rng(0)
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (120, 200, 3), dtype=np.uint8)).save(stream, "PNG")
    small = script.small_png(stream.getvalue())
    assert len(small) < min(len(stream.getvalue()), script.MAX_BYTES)
    picture = Image.open(io.BytesIO(small))
    assert (picture.size, picture.mode) == ((200, 120), "P")
