"""TemporalInfoNCE: features of anchors and of their futures -> loss and diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_infonce.nce import (
    BilinearCritic,
    CosineCritic,
    Critic,
    SeparableMLPCritic,
    info_nce,
    info_nce_bound,
    log_candidates,
    retrieval_accuracy,
)
from rl_infonce.networks.custom_loss import CustomLoss
from rl_infonce.networks.recurrent import GRUSummary
from rl_infonce.networks.transition import MLPTransition
from rl_infonce.settings import InfoNCESettings


class ObjectiveShape(NamedTuple):
    """Sizes the objective's parameters depend on.

    Attributes:
        features_dim: D, size of the encoder's features.
        local_dim: C, channels of the encoder's convolutional map.
        n_horizons: K.
        action_dim: Size of one encoded action; 0 if predictions do not see the actions.
        n_places: P, height times width of the map; only a "positional" term needs it.
    """

    features_dim: int
    local_dim: int
    n_horizons: int
    action_dim: int = 0
    n_places: int = 1


class ContrastBatch(NamedTuple):
    """Encoded anchors and futures.

    Attributes:
        context: [B, L, D] features of the last L steps, the anchor's own last.
        context_used: [B, L] bool; False where the episode had not begun yet.
        futures: [K, M, D] features; the first B lie `horizons[k]` steps after each anchor, and more
            of them are candidates alone.
        mask: [K, B, M] bool; True where candidate j takes part for anchor i in the loss.
        time_mask: [B, M] bool; the same before anyone looked at the images, for the bound: a mask
            of equal images voids it. None where `mask` did not look either.
        actions: [B, largest horizon, A] encoded actions from the anchor's on, or None.
        anchor_maps: [B, C, H, W] map of the anchor, or None without local terms.
        future_maps: [K, M, C, H, W] maps of the futures, or None without local terms.
        mask_excludes: False where it is known that `mask` is True everywhere, which saves its time.
    """

    context: Tensor
    context_used: Tensor
    futures: Tensor
    mask: Tensor
    time_mask: Tensor | None = None
    actions: Tensor | None = None
    anchor_maps: Tensor | None = None
    future_maps: Tensor | None = None
    mask_excludes: bool = True


@dataclass(frozen=True)
class TemporalInfoNCELoss:
    """The loss and what it says, which is detached, and computed where it is asked for.

    Attributes:
        loss: [] nats; sum over terms of the mean over horizons, positions and anchors.
        scores: [K, B, M] or [K, P, B, M] of the first term.
        mask: [K, B, M] bool; True where a candidate takes part in the loss.
        bound_mask: [K, B, M] or [B, M] bool; the same for the bound.
    """

    loss: Tensor
    scores: Tensor
    mask: Tensor
    bound_mask: Tensor

    @cached_property
    def accuracy(self) -> Tensor:
        """[K] share of anchors whose positive scores best."""
        mask = _like(self.mask, self.scores)
        accuracy = retrieval_accuracy(self.scores, mask=mask, validate_args=False)
        return accuracy.flatten(1).mean(1)

    @cached_property
    def mi_lower_bound(self) -> Tensor:
        """[] nats, of the first term (van den Oord et al. 2018, appendix A.1).

        It is on what the anchor tells about the future: the present, with `action_conditioning`
        also the actions in between, and with `context="gru"` the past.

        Equal images stay among its candidates, unlike in the loss. Four things void it still
        (`rl_infonce.nce.info_nce_bound`): pairs that were trained on before; candidates left out by
        `min_gap`, whose likeness to the positive it would count; candidates of the anchor's own
        episode, which are no independent draws and matter where rollouts are short; and, of order
        1 / B, what the batch mean of the anchors tells about them.
        """
        return info_nce_bound(self.scores, mask=self.bound_mask, validate_args=False).mean()

    @cached_property
    def mi_ceiling(self) -> Tensor:
        """[] nats, the largest bound these candidates allow: mean log N.

        The loss of chance is less where equal images are masked.
        """
        return log_candidates(self.scores, mask=self.bound_mask, validate_args=False).mean()

    @cached_property
    def masked_share(self) -> Tensor:
        """[] share of in-batch negatives that the mask of the loss excludes."""
        n_problems, n_anchors, n_candidates = self.mask.shape
        n_negatives = n_anchors * (n_candidates - 1) * n_problems
        return (~self.mask).sum() / max(n_negatives, 1)


def make_critic(
    settings: InfoNCESettings,
    anchor_dim: int,
    candidate_dim: int,
    n_horizons: int,
    generator: torch.Generator,
    n_places: int | None = None,
) -> Critic:
    """Return the critic the settings name, initialised from `generator`."""
    if settings.critic == "cosine":
        return CosineCritic(
            anchor_dim,
            candidate_dim,
            n_horizons,
            temperature=settings.temperature,
            generator=generator,
            n_places=n_places,
        )
    kind = SeparableMLPCritic if settings.critic == "mlp" else BilinearCritic
    return kind(anchor_dim, candidate_dim, n_horizons, generator=generator, n_places=n_places)


def make_predictor(
    settings: InfoNCESettings, shape: ObjectiveShape, generator: torch.Generator
) -> GRUSummary | MLPTransition | None:
    """Return what rolls features forward, or None where the critic predicts alone."""
    if settings.rolls_forward_by == "mlp":
        return MLPTransition(shape.features_dim, shape.action_dim, generator=generator)
    if settings.rolls_forward_by == "gru":
        return GRUSummary(shape.action_dim, shape.features_dim, generator=generator)
    return None


class TemporalInfoNCE(nn.Module):
    """Contrast each anchor with its own future against the futures of the other anchors.

    The "global" term is CPC (van den Oord et al. 2018, eq. 4): one critic per horizon scores the
    summary c_t (or the features z_t) with the features at t+k. "global_local" and "local_local"
    are those of ST-DIM (Anand et al. 2019): the anchor's features, or its map at a position, with
    the future's map at the same position, averaged over positions; from now to then as in the
    paper's equations, the reverse of the published code. "positional" is "global_local" with a
    critic of its own for each position, without which features need not say what stands where.
    Terms are summed; horizons, positions and anchors averaged, so that the coefficient means the
    same for any number of them.

    Unless `settings.centred` is False, both sides are centred over the batch before the critic, as
    by the batch norm in SimCLR's head: features of images share most of their pixels, so that
    without it every score starts out equal (on Pong, 3.4 instead of 1.7 nats over the first 64
    updates).

    With actions, the prediction for horizon k sees a_t .. a_{t+k-1} through a GRU whose first
    state is c_t (CPC|A, Guo et al. 2018), or through the network of `predictor="mlp"`.

    Args:
        settings: Which terms, critic and context.
        shape: Sizes of features, maps, horizons and actions.
        generator: Source of the initial weights; the global random stream is never used.
    """

    def __init__(
        self, settings: InfoNCESettings, shape: ObjectiveShape, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.settings = settings
        features, local, n_horizons = shape.features_dim, shape.local_dim, shape.n_horizons

        def critic_of(term: str) -> Critic:
            anchor_dim = local if term == "local_local" else features
            candidate_dim = features if term == "global" else local
            n_places = shape.n_places if term == "positional" else None
            return make_critic(settings, anchor_dim, candidate_dim, n_horizons, generator, n_places)

        contrasts = settings.objective == "infonce"
        terms = settings.terms if contrasts else ()
        # "global" alone is no name in the code that `torch.export` writes.
        self.critics = nn.ModuleDict({f"{term}_term": critic_of(term) for term in terms})
        self.past = (
            GRUSummary(features, features, generator=generator)
            if settings.context == "gru"
            else None
        )
        self.future = make_predictor(settings, shape, generator)
        self.custom = (
            None
            if isinstance(settings.objective, str)
            else CustomLoss(settings.objective, features, shape.action_dim, generator=generator)
        )

    def forward(self, batch: ContrastBatch, horizons: tuple[int, ...]) -> TemporalInfoNCELoss:
        """Return the loss of a batch whose futures lie `horizons` steps ahead.

        Args:
            batch: Encoded anchors and futures.
            horizons: K gaps in steps, in the order of `batch.futures`.
        """
        predictions = self.predict(batch, horizons)  # [K, B, D]
        if self.custom is not None:
            return self._custom_loss(self.custom, predictions, batch)
        if self.settings.objective == "self_prediction":
            return self._self_prediction(predictions, batch)
        scores = {
            term: torch.stack(
                [self.scores(term, batch, predictions, k) for k in range(len(horizons))]
            )
            for term in self.settings.terms
        }  # global [K, B, M], local [K, P, B, M]
        loss = torch.stack([_mean_loss(s, batch) for s in scores.values()]).sum()
        first = self.settings.terms[0]
        return _report(loss, scores[first].detach(), batch)

    def _self_prediction(self, predictions: Tensor, batch: ContrastBatch) -> TemporalInfoNCELoss:
        """Return the loss without negatives; what it says of retrieval is by the cosine."""
        cosines = cosine_matrix(predictions, batch.futures.detach())  # [K, B, M]
        loss = 1.0 - cosines.diagonal(dim1=1, dim2=2).mean()
        return _report(loss, cosines.detach() / self.settings.temperature, batch)

    def _custom_loss(
        self, custom: CustomLoss, predictions: Tensor, batch: ContrastBatch
    ) -> TemporalInfoNCELoss:
        """Return the user's own loss; what it says of retrieval is by the cosine of features."""
        features = predictions[0]
        loss = custom(features, batch.futures[:, : len(features)], batch.actions)
        cosines = cosine_matrix(predictions.detach(), batch.futures.detach())
        return _report(loss, cosines / self.settings.temperature, batch)

    def critic(self, term: str) -> nn.Module:
        """Return the critic of one of the settings' terms."""
        return self.critics[f"{term}_term"]

    def predict(self, batch: ContrastBatch, horizons: tuple[int, ...]) -> Tensor:
        """Return what each horizon's critic sees of the anchor: [K, B, D]."""
        if self.past is None:
            summary = batch.context[:, -1]  # [B, D]
        else:
            summary = self.past(batch.context, used=batch.context_used)[:, -1]
        if self.future is None:
            return summary.expand(len(horizons), *summary.shape)
        actions = batch.actions
        if actions is None:
            actions = summary.new_zeros(len(summary), max(horizons), 0)
        states = self.future(actions, initial=summary)  # [B, largest horizon, D]
        return torch.stack([states[:, k - 1] if k else summary for k in horizons])

    def scores(self, term: str, batch: ContrastBatch, predictions: Tensor, k: int) -> Tensor:
        """Return scores of one term at the k-th horizon: [B, M], or [P, B, M] over positions.

        Args:
            term: One of the settings' terms.
            batch: Encoded anchors and M futures per horizon.
            predictions: What `predict` returned, [K, B, D].
            k: Position of the horizon, from 0.

        Raises:
            ValueError: If a local term has no convolutional maps.
        """
        critic = self.critic(term)
        if term == "global":
            scores: Tensor = critic(*self._sides(predictions[k], batch.futures[k]), k)
            return scores
        if batch.anchor_maps is None or batch.future_maps is None:
            raise ValueError(f"Expected `batch` to hold convolutional maps for term {term!r}.")
        futures = places(batch.future_maps[k])  # [P, B, C]
        anchors = places(batch.anchor_maps) if term == "local_local" else predictions[k]
        local_scores: Tensor = critic(*self._sides(anchors, futures), k)
        return local_scores

    def _sides(self, anchors: Tensor, futures: Tensor) -> tuple[Tensor, Tensor]:
        if self.settings.centred:
            return centred(anchors), centred(futures)
        return anchors, futures


def _mean_loss(scores: Tensor, batch: ContrastBatch) -> Tensor:
    mask = _like(batch.mask, scores) if batch.mask_excludes else None
    # NaN passes through: the caller drops such a loss and goes on.
    return info_nce(scores, mask=mask, validate_args=False).mean()


def centred(embeddings: Tensor) -> Tensor:
    """Return embeddings [..., B, D] without their mean over the batch."""
    return embeddings - embeddings.mean(dim=-2, keepdim=True)


def cosine_matrix(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Return the cosine [..., B, M] of anchors [..., B, D] with candidates [..., M, D]."""
    return functional.normalize(anchors, dim=-1) @ functional.normalize(candidates, dim=-1).mT


def places(maps: Tensor) -> Tensor:
    """Return maps [B, C, H, W] as [H * W, B, C]: one problem per place."""
    return maps.flatten(2).permute(2, 0, 1)


def _like(mask: Tensor, scores: Tensor) -> Tensor:
    return mask if scores.dim() == mask.dim() else mask[:, None]


def _report(loss: Tensor, scores: Tensor, batch: ContrastBatch) -> TemporalInfoNCELoss:
    # Among candidates that all differ from the positive, any information looks like log N.
    of_bound = _like(batch.mask, scores) if batch.time_mask is None else batch.time_mask
    return TemporalInfoNCELoss(loss, scores, batch.mask, of_bound)
