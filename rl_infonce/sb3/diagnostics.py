"""What the logger shows beside the loss: spread and rank of features, and the overlap floor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_infonce.device import seeded_on_cpu
from rl_infonce.nce import retrieval_accuracy
from rl_infonce.networks.architectures import randomise_
from rl_infonce.objective import TemporalInfoNCELoss

PART = 64
"""Images that are encoded and compared at a time."""


def feature_std(features: Tensor) -> Tensor:
    """Return the standard deviation over the batch, averaged over features; 0 means collapse.

    Args:
        features: [B, D].
    """
    return features.float().std(dim=0).mean()


def dead_share(features: Tensor, *, tolerance: float = 1e-3) -> Tensor:
    """Return the share of features that hardly differ over the batch, in [0, 1].

    They are the dormant units of Sokar et al. 2023, eq. 1, by their range in place of their mean
    activation. So this counts a ReLU that is 0 everywhere, which has no gradient and seldom comes
    back, as well as an ELU at -1, and a member of a softmax that the others always exceed.

    Args:
        features: [B, D].
        tolerance: Largest range of a dead feature, in mean ranges of all features; 0 counts those
            that are the same number for the whole batch.
    """
    features = features.float()
    ranges = features.amax(dim=0) - features.amin(dim=0)
    return (ranges <= tolerance * ranges.mean()).float().mean()


def has_collapsed(features: Tensor) -> bool:
    """Return whether features differ by less than a thousandth of how large they are.

    Args:
        features: [B, D].
    """
    return bool(feature_std(features) <= 1e-3 * features.float().abs().mean())


def effective_rank(features: Tensor) -> Tensor:
    """Return exp(entropy of the normalised singular values), between 1 and min(B - 1, D).

    Roy & Vetterli 2007, definition 1, of the features centred over the batch. Features without
    any spread have effective rank 1; those that are not finite have NaN.

    Args:
        features: [B, D].
    """
    features = features.float()
    if not features.isfinite().all():
        return features.new_full((), torch.nan)
    spread = features - features.mean(dim=0)
    # LAPACK is several times faster on a tall matrix than on a wide one.
    singular = torch.linalg.svdvals(spread if len(spread) > spread.shape[1] else spread.T)
    share = singular / singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    rank: Tensor = torch.special.entr(share).sum().exp()
    return rank


def feature_scalars(features: Tensor) -> dict[str, float]:
    """Return names of curves to what features [B, D] are like."""
    return {
        "feature_std": float(feature_std(features)),
        "dead_features": float(dead_share(features)),
        "effective_rank": float(effective_rank(features)),
    }


def pixel_floor(anchors: Tensor, futures: Tensor, mask: Tensor, horizon: int) -> Tensor:
    """Return the retrieval accuracy of raw pixels, which know nothing but what has not moved.

    Two matchers by Euclidean distance, the better of which counts: the whole stacks; and the
    frames that a stack `horizon` steps later still holds, which betrays shared pixels.

    Args:
        anchors: [B, C, H, W].
        futures: [M, C, H, W], the first B `horizon` steps later.
        mask: [B, M] bool, True where candidate j takes part for anchor i.
        horizon: Gap in steps.

    Returns:
        [] in [0, 1].
    """
    shift = min(horizon, anchors.shape[1] - 1)
    pairs = [(anchors, futures), (anchors[:, shift:], futures[:, : anchors.shape[1] - shift])]
    accuracies = [retrieval_accuracy(-_distances(a, f), mask=mask).mean() for a, f in pairs]
    return torch.stack(accuracies).max()


def _distances(anchors: Tensor, futures: Tensor) -> Tensor:
    """Return Euclidean distances [B, M] between images [B, C, H, W] and [M, C, H, W]."""
    rows = anchors.flatten(1).float()
    return in_parts(lambda part: torch.cdist(part.flatten(1).float(), rows), futures).T


def in_parts(function: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Return what a function of rows makes of a batch [K, ...], in the memory of a few rows."""
    return torch.cat([function(part) for part in torch.split(batch, PART)])


def vector_floor(anchors: Tensor, futures: Tensor, mask: Tensor) -> Tensor:
    """Return the retrieval accuracy, in [0, 1], of Euclidean distance between vectors.

    Args:
        anchors: [B, n] normalised observations.
        futures: [M, n], of which the first B are the positives.
        mask: [B, M] bool, True where candidate j takes part for anchor i.
    """
    distances = torch.cdist(anchors.float(), futures.float())
    return retrieval_accuracy(-distances, mask=mask).mean()


def without_own_observation(mask: Tensor, anchors: Tensor, futures: Tensor) -> Tensor:
    """Return a mask [B, M] that leaves out candidates equal to the anchor itself.

    The future of one anchor is the observation of another, and nothing is nearer to it. A positive
    that equals its anchor stays.

    Args:
        mask: [B, M] bool, True where candidate j takes part for anchor i.
        anchors: [B, n].
        futures: [M, n], of which the first B are the positives.
    """
    # Not by way of a product, which gives equal vectors a distance above 0.
    distances = torch.cdist(anchors, futures, compute_mode="donot_use_mm_for_euclid_dist")
    positives = torch.eye(*mask.shape, dtype=torch.bool, device=mask.device)
    return mask & ((distances > 0) | positives)


def random_encoder(trunk: nn.Module, seed: int) -> nn.Module:
    """Return a frozen copy of `trunk` on the CPU with random weights, the same for every device.

    No global random stream is used.
    """
    frozen = copy.deepcopy(trunk).to("cpu")  # where the generator draws
    randomise_(frozen, torch.Generator().manual_seed(seed))
    return frozen.requires_grad_(False).eval()


def redrawn_network(network: nn.Module, seed: int) -> nn.Module:
    """Return a frozen copy of a user's network whose layers are drawn anew as torch draws them.

    What has no `reset_parameters` stays as it is. No global random stream is disturbed.

    Raises:
        RuntimeError: If the network cannot be copied, as one that keeps an activation.
    """
    frozen = copy.deepcopy(network).to("cpu")
    with seeded_on_cpu(seed):
        for part in frozen.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
    return frozen.requires_grad_(False).eval()


def random_encoder_floor(anchor_codes: Tensor, future_codes: Tensor, mask: Tensor) -> Tensor:
    """Return the retrieval accuracy of an untrained encoder's codes under the cosine.

    Args:
        anchor_codes: [B, D].
        future_codes: [M, D].
        mask: [B, M] bool.

    Returns:
        [] in [0, 1].
    """
    centre = torch.cat([anchor_codes, future_codes]).mean(dim=0)
    scores = F.normalize(anchor_codes - centre) @ F.normalize(future_codes - centre).T
    return retrieval_accuracy(scores, mask=mask).mean()


def overlap_floors(
    frozen: nn.Module | None,
    anchors: Tensor,
    futures: Sequence[Tensor],
    masks: Tensor,
    horizons: Sequence[int],
) -> dict[str, float]:
    """Return what raw observations and a frozen random encoder retrieve on the same pairs.

    Args:
        frozen: Images [B, C, H, W] or vectors [B, n] to codes [B, D]; None where there is none.
        anchors: [B, C, H, W] or [B, n].
        futures: K of shape [M, C, H, W] or [M, n].
        masks: [K, B, M] bool.
        horizons: K gaps in steps.
    """
    codes = None if frozen is None else in_parts(frozen, anchors)
    floors: dict[str, float] = {}
    for k, candidates, mask in zip(horizons, futures, masks, strict=True):
        if anchors.dim() == 2:
            others = without_own_observation(mask, anchors, candidates)
            floors[f"floor_observations_k{k}"] = float(vector_floor(anchors, candidates, others))
        else:
            others = mask
            floors[f"floor_pixels_k{k}"] = float(pixel_floor(anchors, candidates, mask, k))
        if frozen is not None and codes is not None:
            floor = random_encoder_floor(codes, in_parts(frozen, candidates), others)
            floors[f"floor_random_k{k}"] = float(floor)
    return floors


def scalars_of(
    result: TemporalInfoNCELoss, horizons: Sequence[int], *, contrasts: bool
) -> dict[str, float]:
    """Return the numbers beside the loss by their tags, in one transfer from the device.

    A loss that contrasts nothing has no chance level, and no bound that it raises.
    """
    tags = ["masked_share"]
    if contrasts:
        tags += ["mi_lower_bound", "mi_ceiling"]
    single = torch.stack([getattr(result, tag).detach().float() for tag in tags])
    tags += [f"accuracy_k{k}" for k in horizons]
    return dict(zip(tags, torch.cat([single, result.accuracy]).tolist(), strict=True))
