"""Score what the InfoNCE critic of a model takes for the future of an anchor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

from rl_infonce.agents.features import acting_extractor, acting_network, network_inputs
from rl_infonce.objective import ContrastBatch
from rl_infonce.probing.features import evaluating
from rl_infonce.sb3.batch_encoding import Encoded
from rl_infonce.sb3.extractor import InfoNCEExtractor

IntArray = npt.NDArray[np.int64]

_BATCH = 256


class CriticScores(NamedTuple):
    """Scores of anchors with frames that follow them, and with frames of another episode.

    `anchors` [B] and `others` [B] are rows; `same` and `other` [K, B, n] score the n frames
    that begin there, per horizon.
    """

    anchors: IntArray
    others: IntArray
    same: npt.NDArray[np.float32]
    other: npt.NDArray[np.float32]


def has_critic(extractor: nn.Module) -> TypeGuard[InfoNCEExtractor]:
    """Return whether `critic_scores` can score with this extractor's critic.

    A critic that needs the actions in between cannot score frames alone; a loss without negatives,
    or of the user's own, has none.
    """
    return (
        isinstance(extractor, InfoNCEExtractor)
        and extractor.infonce.future is None
        and len(extractor.infonce.critics) > 0
    )


def critic_scores(
    policy: BasePolicy,
    observations: Any,
    episode_ids: IntArray,
    rng: np.random.Generator,
    *,
    n_steps: int,
    n_anchors: int = 32,
    vec_normalize: VecNormalize | None = None,
) -> CriticScores | None:
    """Score frames 0 to `n_steps` - 1 steps after random anchors, and frames of other episodes.

    Observations are raw images [K, C, H, W]; consecutive rows of one episode are consecutive steps.
    Unless the settings say `centred=False`, both sides are centred over what is drawn here, as
    training centres over its batch. The frames go through the target encoder if there is one.
    Only the first of several terms is scored; local scores are averaged over positions. None
    means that fewer than two episodes are `n_steps` long.
    """
    starts = _starts(episode_ids, n_steps)
    if len(np.unique(episode_ids[starts])) < 2:
        return None
    anchors = rng.choice(starts, n_anchors)
    others = np.array(
        [rng.choice(starts[episode_ids[starts] != episode_ids[anchor]]) for anchor in anchors]
    )
    steps = np.arange(n_steps)
    candidates = np.concatenate([anchors[:, None] + steps, others[:, None] + steps])  # [2B, n]
    extractor = acting_extractor(policy)
    assert has_critic(extractor)  # noqa: S101 (the caller has looked)

    def inputs(rows: IntArray) -> Tensor:
        images = torch.as_tensor(np.asarray(observations[rows]))
        return network_inputs(acting_network(policy), images, vec_normalize)

    with evaluating(extractor), torch.no_grad():
        scores = _scores(extractor, inputs, episode_ids, anchors, candidates)
    ours = scores.reshape(len(scores), n_anchors, 2, n_anchors, n_steps)
    picked = ours[:, np.arange(n_anchors), :, np.arange(n_anchors)]  # [B, K, 2, n]
    same, other = picked.transpose(2, 1, 0, 3)
    return CriticScores(anchors, others, same, other)


def _starts(episode_ids: IntArray, n_steps: int) -> IntArray:
    """Return rows whose episode lasts for at least `n_steps` rows from there."""
    last = len(episode_ids) - n_steps + 1
    if last <= 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(episode_ids[:last] == episode_ids[n_steps - 1 :])


def _scores(
    extractor: InfoNCEExtractor,
    inputs: Callable[[IntArray], Tensor],
    episode_ids: IntArray,
    anchors: IntArray,
    candidates: IntArray,
) -> npt.NDArray[np.float32]:
    """Return the critics' scores [K, B, M] of the anchors with all candidates."""

    def encode(rows: IntArray, averages: dict[str, Tensor] | None = None) -> Encoded:
        parts = []
        for start in range(0, len(rows), _BATCH):
            part = inputs(rows[start : start + _BATCH])
            parts.append(extractor.encoder.encode(part, averages))
        maps = [each.maps for each in parts if each.maps is not None]
        features = torch.cat([each.features for each in parts])
        return Encoded(features, torch.cat(maps) if maps else None)

    target = extractor.target
    averages = target.averages() if target is not None and target.has_begun else None
    settings = extractor.settings
    length = settings.n_context_steps
    rows = np.maximum(anchors[:, None] - np.arange(length)[::-1], 0)  # [B, L]
    used = episode_ids[rows] == episode_ids[anchors][:, None]
    used &= anchors[:, None] >= np.arange(length)[::-1]
    past, future = encode(rows.reshape(-1)), encode(candidates.reshape(-1), averages)
    n_horizons = len(extractor.horizons)

    def repeated(encoded: Tensor) -> Tensor:
        return encoded.expand(n_horizons, *encoded.shape)

    anchor_maps = future_maps = None
    if settings.uses_maps and past.maps is not None and future.maps is not None:
        anchor_maps = past.maps.reshape(len(anchors), length, *past.maps.shape[1:])[:, -1]
        future_maps = repeated(future.maps)
    batch = ContrastBatch(
        context=past.features.reshape(len(anchors), length, -1),
        context_used=torch.as_tensor(used, device=extractor.device),
        futures=repeated(future.features),
        mask=torch.empty(0),
        anchor_maps=anchor_maps,
        future_maps=future_maps,
    )
    predictions = extractor.infonce.predict(batch, extractor.horizons)
    term = settings.terms[0]
    found = [extractor.infonce.scores(term, batch, predictions, k) for k in range(n_horizons)]
    averaged = [each if each.dim() == 2 else each.mean(0) for each in found]
    return torch.stack(averaged).float().cpu().numpy()
