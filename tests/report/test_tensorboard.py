"""What TensorBoard reads back from the event files."""

import re
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from torch.utils.tensorboard import SummaryWriter

from rl_infonce.report.tensorboard import write_chart_layout, write_projector


def test_a_chart_names_its_lines_and_no_others(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        write_chart_layout(writer, {"probe": {"F1 mean": ["probe/f1_mean", "probe/other"]}})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    (section,) = layout.category
    assert section.title == "probe"
    (chart,) = section.chart
    assert chart.title == "F1 mean"
    # TensorBoard matches from the start of a tag
    first, second = (re.compile(pattern) for pattern in chart.multiline.tag)
    assert first.match("probe/f1_mean")
    assert not first.match("probe/f1_mean_old")
    assert second.match("probe/other")


def test_the_projector_gets_points_labels_and_pictures(tmp_path: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    labels = {"ball_x": np.array([1, 2, 3, 4]), "score": np.array([0, 0, 1, 1])}
    pictures = np.full((4, 6, 6), [[[10]], [[20]], [[30]], [[40]]], np.uint8)
    with SummaryWriter(tmp_path) as writer:
        write_projector(writer, features, labels, pictures, step=7, tag="features")
    folder = tmp_path / "00007" / "features"
    assert (folder / "metadata.tsv").read_text().splitlines() == [
        "ball_x\tscore", "1\t0", "2\t0", "3\t1", "4\t1"
    ]  # fmt: skip
    np.testing.assert_array_equal(np.loadtxt(folder / "tensors.tsv"), features)
    sprite = np.asarray(Image.open(folder / "sprite.png"))
    assert sprite.shape == (12, 12, 3)
    np.testing.assert_array_equal(sprite[[0, 0, 6, 6], [0, 6, 0, 6], 0], [245, 235, 225, 215])
    config = (tmp_path / "projector_config.pbtxt").read_text()
    assert "00007/features/tensors.tsv" in config
