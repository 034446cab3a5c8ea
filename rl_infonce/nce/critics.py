"""Critics: anchors and candidates in, scores out, one critic per horizon in one module.

Only raw `nn.Parameter`s: Stable-Baselines3 re-initialises every `nn.Linear` and `nn.Conv2d` it
finds in a policy. All randomness comes from the caller's generator, so a host's random stream is
the same with and without a critic.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_infonce.checks import check_count, check_number, check_shape
from rl_infonce.nce._candidates import check_like
from rl_infonce.nce._precision import at_least_float32, autocast_off, unit_vectors

MAX_LOG_SCALE = math.log(100.0)


class Critic(nn.Module, ABC):
    """What all critics share: checked inputs, float32 arithmetic, a temperature.

    Products of float32 are as exact as `torch.set_float32_matmul_precision` allows: leave it at its
    default, "highest", for large scales.

    Args:
        anchor_dim: Size of an anchor, >= 1.
        candidate_dim: Size of a candidate, >= 1.
        n_horizons: Number of horizons, each with its own parameters, >= 1.
        n_places: P, number of places of a map, each with its own parameters for the anchors, >= 1;
            None for one set of parameters wherever a candidate stands.

    All arguments are also attributes.

    Raises:
        TypeError: If a size is no integer.
        ValueError: If a size is too small, or a setting out of range.
    """

    def __init__(
        self,
        anchor_dim: int,
        candidate_dim: int,
        n_horizons: int = 1,
        *,
        n_places: int | None = None,
    ) -> None:
        super().__init__()
        check_count("anchor_dim", anchor_dim)
        check_count("candidate_dim", candidate_dim)
        check_count("n_horizons", n_horizons)
        if n_places is not None:
            check_count("n_places", n_places)
        self.anchor_dim = anchor_dim
        self.candidate_dim = candidate_dim
        self.n_horizons = n_horizons
        self.n_places = n_places

    def _check_places(self, name: str, embeddings: Tensor, axes: str) -> None:
        leading = tuple(embeddings.shape[:-2])
        if self.n_places is not None and leading not in ((), (self.n_places,)):
            raise ValueError(
                f"Expected `{name}` of shape [{axes}] or [{self.n_places}, {axes}], "
                f"got {tuple(embeddings.shape)}."
            )

    def _check_dtypes(self, anchors: Tensor, candidates: Tensor) -> None:
        own = next(self.parameters(), None)
        if own is None:
            return
        if own.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                "Expected a critic whose parameters are float32 or float64, as scores are, got "
                f"{own.dtype}. Call .float() on it; anchors and candidates may stay in less."
            )
        check_like("anchors", anchors, "critic.parameters()", own)
        check_like("candidates", candidates, "critic.parameters()", own)

    @property
    def _sets(self) -> tuple[int, ...]:
        """Leading axes of the parameters of which horizons and places have their own."""
        return (self.n_horizons,) if self.n_places is None else (self.n_horizons, self.n_places)

    def forward(self, anchors: Tensor, candidates: Tensor, horizon_index: int = 0) -> Tensor:
        """Return the score of every candidate for every anchor.

        Args:
            anchors: [..., B, anchor_dim]; with places [B, anchor_dim] or [P, B, anchor_dim].
            candidates: [..., M, candidate_dim], the leading axes broadcastable to the anchors';
                with places [M, candidate_dim] or [P, M, candidate_dim].
            horizon_index: Which horizon's parameters to use, from 0 to n_horizons - 1. A position
                in the list of horizons, not a number of steps.

        Returns:
            [..., B, M] log-scores, already divided by the temperature, float32 or float64; with
            places [P, B, M].

        Raises:
            TypeError: If `horizon_index` is no integer, or a dtype does not fit: float64 needs a
                critic in float64, anything below one in float32.
            ValueError: If a shape or device does not fit or there is no such horizon.
        """
        check_shape("anchors", anchors, ["...", "B", self.anchor_dim])
        check_shape("candidates", candidates, ["...", "M", self.candidate_dim])
        self._check_places("anchors", anchors, f"B, {self.anchor_dim}")
        self._check_places("candidates", candidates, f"M, {self.candidate_dim}")
        check_count("horizon_index", horizon_index, at_least=0, at_most=self.n_horizons - 1)
        with autocast_off(anchors):
            anchors, candidates = at_least_float32(anchors), at_least_float32(candidates)
            self._check_dtypes(anchors, candidates)
            return self._scores(anchors, candidates, horizon_index)

    @property
    def temperature(self) -> Tensor:
        """What the scores were divided by: 0-dim, > 0, detached; 1 if matrices carry the scale."""
        return torch.ones((), device=next(self.parameters()).device)

    @abstractmethod
    def _scores(self, anchors: Tensor, candidates: Tensor, horizon_index: int) -> Tensor:
        """Return [..., B, M] scores of checked inputs of at least float32."""


class BilinearCritic(Critic):
    """One matrix W_k per horizon: LN(a) W_k LN(c)^T / sqrt(candidate_dim).

    van den Oord et al. 2018 ("Contrastive Predictive Coding", eq. 3) with a deviation: both sides
    pass a layer norm without parameters, and the scores start with standard deviation about 1. On
    ReLU features of a fresh encoder the plain form starts slowly, its scores are all near 0.
    `layer_norm=False` gives the paper's a W_k c^T, unscaled.

    Args:
        anchor_dim, candidate_dim, n_horizons, n_places: As in `Critic`; sizes >= 2 with layer norm.
        generator: Source of the initial parameters, which are created on its device.
        layer_norm: Whether to normalise both sides and divide by sqrt(candidate_dim).
    """

    def __init__(
        self,
        anchor_dim: int,
        candidate_dim: int,
        n_horizons: int = 1,
        *,
        generator: torch.Generator,
        n_places: int | None = None,
        layer_norm: bool = True,
    ) -> None:
        super().__init__(anchor_dim, candidate_dim, n_horizons, n_places=n_places)
        if layer_norm and min(anchor_dim, candidate_dim) < 2:
            raise ValueError(
                "Expected `anchor_dim` and `candidate_dim` >= 2 with `layer_norm` (over one number "
                f"it is always 0), got {anchor_dim} and {candidate_dim}."
            )
        self.layer_norm = layer_norm
        fan_in = anchor_dim if layer_norm else anchor_dim * candidate_dim
        self.weight = _normal((*self._sets, anchor_dim, candidate_dim), fan_in**-0.5, generator)

    def _scores(self, anchors: Tensor, candidates: Tensor, horizon_index: int) -> Tensor:
        weight = self.weight[horizon_index]  # [Da, Dc] or [P, Da, Dc]
        if not self.layer_norm:
            return anchors @ weight @ candidates.mT  # [..., B, M]
        normed_anchors = F.layer_norm(anchors, (self.anchor_dim,))
        normed_candidates = F.layer_norm(candidates, (self.candidate_dim,))
        return normed_anchors @ weight @ normed_candidates.mT / math.sqrt(self.candidate_dim)


class CosineCritic(Critic):
    """Cosine of two linear projections, divided by a temperature.

    The score of SimCLR (Chen et al. 2020, eq. 1) and CLIP (Radford et al. 2021, sec. 2.3), here
    with linear projections, one per horizon for the anchors and one shared for the candidates. A
    zero projection scores 0.

    Args:
        anchor_dim, candidate_dim, n_horizons, n_places: As in `Critic`.
        generator: Source of the initial parameters, which are created on its device.
        projection_dim: Size of the projections, >= 1.
        temperature: Temperature, > 0; with `learn_temperature` the initial one, 0.01 to 1.
        learn_temperature: Whether to learn `log_scale` = -log temperature. It stays at most log
            100, as in CLIP, and at least log 1, which each forward pass restores before using it;
            keep it out of weight decay.
    """

    log_scale: Tensor

    def __init__(
        self,
        anchor_dim: int,
        candidate_dim: int,
        n_horizons: int = 1,
        *,
        generator: torch.Generator,
        n_places: int | None = None,
        projection_dim: int = 128,
        temperature: float = 0.1,
        learn_temperature: bool = False,
    ) -> None:
        super().__init__(anchor_dim, candidate_dim, n_horizons, n_places=n_places)
        check_count("projection_dim", projection_dim)
        check_number("temperature", temperature, above=0.0)
        if learn_temperature:
            check_number("temperature", temperature, at_least=0.01, at_most=1.0)
        self.anchor_projection = _normal(
            (*self._sets, anchor_dim, projection_dim), anchor_dim**-0.5, generator
        )
        self.candidate_projection = _normal(
            (candidate_dim, projection_dim), candidate_dim**-0.5, generator
        )
        self.learn_temperature = learn_temperature
        log_scale = torch.tensor(-math.log(temperature), device=generator.device)
        if learn_temperature:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    @property
    def temperature(self) -> Tensor:
        """What the next scores are divided by: 0-dim, detached, 0.01 to 1 if learned."""
        log_scale = self.log_scale.detach()
        if self.learn_temperature:
            log_scale = log_scale.clamp(0.0, MAX_LOG_SCALE)
        return torch.exp(-log_scale)

    def _scores(self, anchors: Tensor, candidates: Tensor, horizon_index: int) -> Tensor:
        if self.learn_temperature:
            # clamping the use instead would stop the gradient that leads back into the range
            with torch.no_grad():
                self.log_scale.clamp_(0.0, MAX_LOG_SCALE)
        unit_anchors = unit_vectors(anchors @ self.anchor_projection[horizon_index])  # [..., B, p]
        unit_candidates = unit_vectors(candidates @ self.candidate_projection)  # [..., M, p]
        return self.log_scale.exp() * (unit_anchors @ unit_candidates.mT)  # [..., B, M]


class SeparableMLPCritic(Critic):
    """Inner product of two networks, g_k(a) . h(c) / sqrt(projection_dim).

    The separable critic of Poole et al. 2019 ("On Variational Bounds of Mutual Information"),
    with one ReLU layer per side instead of two, no output bias, and a division by
    sqrt(projection_dim) that lets the scores start with standard deviation about 1. Horizons share
    the hidden layer and have their own output matrix on the anchors' side.

    Args:
        anchor_dim, candidate_dim, n_horizons, n_places: As in `Critic`.
        generator: Source of the initial parameters, which are created on its device.
        hidden_dim: Units of each hidden layer, >= 1.
        projection_dim: Size of the outputs, >= 1.
    """

    def __init__(
        self,
        anchor_dim: int,
        candidate_dim: int,
        n_horizons: int = 1,
        *,
        generator: torch.Generator,
        n_places: int | None = None,
        hidden_dim: int = 256,
        projection_dim: int = 128,
    ) -> None:
        super().__init__(anchor_dim, candidate_dim, n_horizons, n_places=n_places)
        check_count("hidden_dim", hidden_dim)
        check_count("projection_dim", projection_dim)
        self.projection_dim = projection_dim
        relu_gain = math.sqrt(2.0)
        self.anchor_hidden = _normal(
            (anchor_dim, hidden_dim), relu_gain * anchor_dim**-0.5, generator
        )
        self.candidate_hidden = _normal(
            (candidate_dim, hidden_dim), relu_gain * candidate_dim**-0.5, generator
        )
        self.anchor_bias = nn.Parameter(torch.zeros(hidden_dim, device=generator.device))
        self.candidate_bias = nn.Parameter(torch.zeros(hidden_dim, device=generator.device))
        self.anchor_output = _normal(
            (*self._sets, hidden_dim, projection_dim), hidden_dim**-0.5, generator
        )
        self.candidate_output = _normal((hidden_dim, projection_dim), hidden_dim**-0.5, generator)

    def _scores(self, anchors: Tensor, candidates: Tensor, horizon_index: int) -> Tensor:
        hidden_anchors = F.relu(anchors @ self.anchor_hidden + self.anchor_bias)  # [..., B, H]
        hidden_candidates = F.relu(candidates @ self.candidate_hidden + self.candidate_bias)
        projected_anchors = hidden_anchors @ self.anchor_output[horizon_index]  # [..., B, p]
        projected_candidates = hidden_candidates @ self.candidate_output  # [..., M, p]
        return projected_anchors @ projected_candidates.mT / math.sqrt(self.projection_dim)


def _normal(shape: tuple[int, ...], std: float, generator: torch.Generator) -> nn.Parameter:
    """Return a parameter drawn from N(0, std^2) on the generator's device."""
    weight = torch.empty(shape, device=generator.device)
    return nn.Parameter(weight.normal_(0.0, std, generator=generator))
