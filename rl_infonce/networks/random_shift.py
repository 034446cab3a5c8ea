"""Augment images at random with an explicit generator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_infonce.checks import check_shape

MOST_PIXELS = 4
"""By how much an image moves at most along each axis."""


def random_shift(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images [K, C, H, W] moved by up to 4 pixels each, with their borders repeated.

    This equals replicate-padding by 4 and cropping at random (Kostrikov et al. 2020, DrQ), but
    makes no padded copy. All channels of one image are shifted alike, by integers that are uniform
    on -4 .. 4 along each axis.
    """
    check_shape("images", images, ("K", "C", "H", "W"))
    n_images, _, height, width = images.shape
    shifts = torch.as_tensor(rng.integers(-MOST_PIXELS, MOST_PIXELS + 1, size=(2, n_images, 1)))
    rows = (torch.arange(height) + shifts[0]).clamp_(0, height - 1).to(images.device)  # [K, H]
    columns = (torch.arange(width) + shifts[1]).clamp_(0, width - 1).to(images.device)  # [K, W]
    image = torch.arange(n_images, device=images.device)[:, None, None]
    return images[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
