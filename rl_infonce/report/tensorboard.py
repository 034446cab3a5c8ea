"""Pages of TensorBoard that plain scalars do not make: reference lines and the projector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def write_chart_layout(
    writer: SummaryWriter, charts: Mapping[str, Mapping[str, Sequence[str]]]
) -> None:
    """Draw several scalars into one chart each, on TensorBoard's page "custom scalars".

    `charts` maps a section of the page to titles of charts to the tags of their lines. TensorBoard
    shows the layout that a run received last.
    """
    writer.add_custom_scalars(
        {
            section: {
                # TensorBoard takes a tag for a regular expression that a tag may start with.
                chart: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags]]
                for chart, tags in content.items()
            }
            for section, content in charts.items()
        }
    )


def write_projector(
    writer: SummaryWriter,
    features: npt.NDArray[np.float32],
    labels: Mapping[str, npt.NDArray[Any]],
    thumbnails: npt.NDArray[np.uint8] | None,
    *,
    step: int,
    tag: str,
) -> None:
    """Show features as points on TensorBoard's page "projector", with their frames and labels.

    Each of the points [B, D] has its values of the variables, to colour and search by, and a gray
    thumbnail [H, W], shown as negative, if there are thumbnails.
    """
    import torch

    # Negatives: most games are dark, and the projector multiplies a picture by its label's colour.
    pictures = None
    if thumbnails is not None:
        pictures = 1 - torch.as_tensor(thumbnails)[:, None].expand(-1, 3, -1, -1) / 255
    rows = [[str(values[k]) for values in labels.values()] for k in range(len(features))]
    writer.add_embedding(
        torch.as_tensor(features),
        metadata=rows,
        metadata_header=list(labels),
        label_img=pictures,
        global_step=step,
        tag=tag,
    )
