"""Augment images at random with an explicit generator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_infonce.checks import check_count, check_shape


def random_shift(images: Tensor, rng: np.random.Generator, *, pad: int = 4) -> Tensor:
    """Return images [K, C, H, W] moved by up to `pad` pixels each, with their borders repeated.

    This equals replicate-padding by `pad` and cropping at random (Kostrikov et al. 2020, DrQ), but
    makes no padded copy. All channels of one image are shifted alike, by integers that are uniform
    on -pad .. pad along each axis.
    """
    check_shape("images", images, ("K", "C", "H", "W"))
    check_count("pad", pad, at_least=0)
    n_images, _, height, width = images.shape
    shifts = torch.as_tensor(rng.integers(-pad, pad + 1, size=(2, n_images, 1)))
    rows = (torch.arange(height) + shifts[0]).clamp_(0, height - 1).to(images.device)  # [K, H]
    columns = (torch.arange(width) + shifts[1]).clamp_(0, width - 1).to(images.device)  # [K, W]
    image = torch.arange(n_images, device=images.device)[:, None, None]
    return images[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
