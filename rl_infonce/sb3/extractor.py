"""InfoNCEExtractor: an image encoder in SB3's clothes that trains itself on the future, too."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from torch import Tensor

from rl_infonce.checks import check_count, check_flag, check_number
from rl_infonce.nce import is_saturated
from rl_infonce.networks.moving_average import MovingAverage
from rl_infonce.networks.random_shift import random_shift
from rl_infonce.objective import (
    ContrastBatch,
    ObjectiveShape,
    TemporalInfoNCE,
    TemporalInfoNCELoss,
)
from rl_infonce.sb3.attach import (
    AuxiliaryGradients,
    GradientReport,
    attach_gradients,
    auxiliary_gradients,
    watch_gradients,
)
from rl_infonce.sb3.batch_encoding import Encoded, contrast_batch, encode_actions, preprocess
from rl_infonce.sb3.batch_sampling import ObservationBatch, SamplingPlan, sample_batch
from rl_infonce.sb3.binding import (
    constructing_algorithm,
    is_gradient_free,
    is_updating,
    known_action_space,
    place_of,
    training_algorithm,
    unfit_for_attaching,
)
from rl_infonce.sb3.diagnostics import (
    feature_scalars,
    has_collapsed,
    overlap_floors,
    random_encoder,
    scalars_of,
)
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.image_encoder import ImageEncoder
from rl_infonce.sb3.session import Session, Steering
from rl_infonce.sb3.spaces import check_image_space, check_single_frame_skip, resolve_horizons
from rl_infonce.settings import preset_settings

_STREAM = 0x1F0CE
"""Keeps the pairs' random stream apart from others grown from the same seed."""


class InfoNCEExtractor(ImageEncoder):
    """Features extractor that adds a temporal InfoNCE loss to whatever algorithm trains it.

    While the host trains, every forward draws anchors from the host's own buffer, encodes them and
    their futures, and lets the host's backward carry `infonce_coef` times the gradient of the
    InfoNCE loss (van den Oord et al. 2018). Rollouts, evaluation and target networks stay as they
    were, and so do SB3's random streams. With `infonce_coef=0` training is bit-identical to the
    same network without the loss.

    `cnn` and `linear` are NatureCNN's, so a state dict without the `infonce.` entries is one of
    NatureCNN. SB3 chooses the hidden layers by the extractor's class: to compare with `NatureCNN`,
    pass `net_arch=[]` (PPO, A2C, DQN and their relatives) or `[256, 256]` (TD3) on both sides.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from stable_baselines3.common.envs import FakeImageEnv
        >>> env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=4, channel_first=True)
        >>> kwargs = {"features_extractor_class": InfoNCEExtractor}
        >>> model = PPO("CnnPolicy", env, n_steps=64, batch_size=32, policy_kwargs=kwargs, seed=0)
        >>> model.learn(64).policy.features_extractor.last_infonce["loss"] > 0
        True

    Args:
        observation_space: One channels-first uint8 image, at least 36x36 for "nature".
        features_dim: D, number of features.
        preset: "cpc", "stdim", "positional_dim", "atc" or "curl"; the arguments below that are None
            take its value.
        infonce_coef: Weight of the auxiliary loss, >= 0.
        horizons: Gaps between anchor and positive in agent steps, distinct, >= 1.
        critic: "bilinear", "cosine" or "mlp".
        temperature: Divides the cosine, > 0.
        learn_temperature: Whether the temperature is trained, inside [0.01, 1].
        n_pairs: Anchors per gradient step, >= 2.
        terms: Of "global", "global_local", "local_local" and "positional"; the second and third are
            ST-DIM's.
        centred: Whether both sides are centred over the batch before the critic.
        encoder: "nature" or "impala".
        context: "none", or "gru" for a summary of the last `context_length` features.
        context_length: Steps the GRU sees, >= 1.
        action_conditioning: Whether predictions see the actions in between (CPC|A).
        action_space: For `action_conditioning` where no SB3 policy builds the extractor.
        augmentation: "none" or "random_shift".
        target_encoder_tau: 1.0 stops the gradient at the positives, less moves an averaged target
            encoder; None takes the preset's, and in "cpc" trains through both.
        positives: "future", or "shuffled" for a placebo: the same loss with other anchors' futures.
        min_gap: Candidates of the anchor's episode less than this many steps from the anchor's own
            future are no negatives, >= 0.
        augment_observations: Whether the host's own loss sees observations moved by up to 4 pixels,
            too (RAD, Laskin et al. 2020); with `infonce_coef=0`, augmentation alone. Only what is
            computed with gradients is moved: not TRPO's old policy, nor its line search.
        max_grad_ratio: Largest norm of the auxiliary gradient on the encoder, as a multiple of the
            RL gradient's; None leaves it alone.
        precision: "fp32", or "bf16" to run the encoder in bfloat16 autocast.
        channels_last: Whether convolutions run channels-last: twice as fast on CPU, equal up to
            rounding. False makes `infonce_coef=0` equal NatureCNN to the last bit.
        seed: Of the pairs, augmentations and heads; None takes the algorithm's. Where that has none
            either, chance decides: `set_random_seed` does not reach them.
        auto_bind: Whether to look up the call stack, read-only, for the algorithm: when the
            extractor is built, when training starts while none is known that it is part of, and
            for whether its `train` or `learn` asks for features, as only these carry the loss.
            With False all do that are computed with gradients in training mode.
        image_key: Entry of the observations that it encodes, where these are dictionaries and it is
            part of an extractor of your own; `InfoNCECombinedExtractor` sets it.
        normalized_image: Whether images are floats already; SB3 sets it for normalize_images=False.

    Raises:
        TypeError: If the observation space is not a Box, or an argument has the wrong type.
        ValueError: If an argument is out of range; the message names it.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        features_dim: int = 512,
        *,
        preset: str = "cpc",
        infonce_coef: float | None = None,
        horizons: Sequence[int] | None = None,
        critic: str | None = None,
        temperature: float | None = None,
        learn_temperature: bool | None = None,
        n_pairs: int | None = None,
        terms: Sequence[str] | None = None,
        centred: bool | None = None,
        encoder: str = "nature",
        context: str | None = None,
        context_length: int | None = None,
        action_conditioning: bool = False,
        action_space: spaces.Space[Any] | None = None,
        augmentation: str | None = None,
        target_encoder_tau: float | None = None,
        positives: str | None = None,
        min_gap: int | None = None,
        augment_observations: bool = False,
        max_grad_ratio: float | None = None,
        precision: str = "fp32",
        channels_last: bool = True,
        seed: int | None = None,
        auto_bind: bool = True,
        image_key: str | None = None,
        normalized_image: bool = False,
    ) -> None:
        space = check_image_space(observation_space, normalized_image=normalized_image)
        settings = preset_settings(
            preset,
            {
                "infonce_coef": infonce_coef,
                "horizons": horizons,
                "critic": critic,
                "temperature": temperature,
                "learn_temperature": learn_temperature,
                "n_pairs": n_pairs,
                "terms": terms,
                "centred": centred,
                "context": context,
                "context_length": context_length,
                "augmentation": augmentation,
                "target_encoder_tau": target_encoder_tau,
                "positives": positives,
                "min_gap": min_gap,
            },
        )
        if max_grad_ratio is not None:
            check_number("max_grad_ratio", max_grad_ratio, above=0)
        if seed is not None:
            check_count("seed", seed, at_least=0)
        check_flag("auto_bind", auto_bind)
        check_flag("augment_observations", augment_observations)
        check_flag("action_conditioning", action_conditioning)
        super().__init__(
            space, features_dim, encoder=encoder, precision=precision, channels_last=channels_last
        )
        self.settings = settings
        self.infonce_coef = settings.infonce_coef
        self.horizons = resolve_horizons(settings.horizons, space.shape)
        self.max_grad_ratio = max_grad_ratio
        self.augment_observations = augment_observations
        self.auto_bind = auto_bind
        self.seed = seed
        self.last_infonce: dict[str, float] = {}

        algorithm = constructing_algorithm() if auto_bind else None
        self._action_space = (
            known_action_space(action_space, look_up=auto_bind) if action_conditioning else None
        )
        known = seed if seed is not None else getattr(algorithm, "seed", None)
        self._chance_seed: int | None = None
        if known is None:
            known = self._chance_seed = secrets.randbits(128)
        self.image_key = image_key
        self._session = Session(_stream(known), image_key)
        self._pending: AuxiliaryGradients | None = None
        self._add_heads(algorithm)
        if algorithm is not None:
            self.bind(algorithm)

    # -- binding ---------------------------------------------------------------------------------

    def bind(self, model: BaseAlgorithm) -> None:
        """Draw pairs from this algorithm's buffer from now on; it is held weakly.

        Ends when training starts and the algorithm's policy has no such extractor. The first
        algorithm's seed, where none was known before, is that of pairs and new heads.

        Raises:
            TypeError: If it is no algorithm of SB3.
            ValueError: If a horizon does not fit into the algorithm's rollouts, or its emulator
                skips frames twice.
        """
        if not isinstance(model, BaseAlgorithm):
            raise TypeError(f"Expected `model` to be an SB3 algorithm, got {model!r}.")
        n_steps = getattr(model, "n_steps", None) if hasattr(model, "gae_lambda") else None
        has_loss = self.infonce_coef > 0  # a baseline may have whatever horizons its rival has
        if has_loss and n_steps is not None and max(self.horizons) >= n_steps:
            raise ValueError(
                f"Expected `horizons` below n_steps={n_steps} of {type(model).__name__}, got "
                f"{self.horizons}: no rollout would hold a pair. Raise n_steps or lower horizons."
            )
        check_single_frame_skip(model)
        self._session.bind(model)
        self._take_seed(model.seed)

    def _take_seed(self, seed: int | None) -> None:
        """Draw again what chance drew, but heads only if neither trained nor loaded since."""
        chance, self._chance_seed = self._chance_seed, None
        if chance is None or seed is None:
            return
        self._session.rng = _stream(seed)
        former, drawn = self._new_heads(_stream(chance)), self._new_heads(self._session.rng)
        if self.infonce is not None and _are_equal(self.infonce, former):
            self.infonce.load_state_dict(drawn.state_dict())

    def train(self, mode: bool = True) -> InfoNCEExtractor:
        """Set training or evaluation mode; at the start of training, check the binding."""
        super().train(mode)
        session = self.__dict__.get("_session")
        if mode and session is not None:
            self._check_binding(session)
        return self

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_binding(self, session: Session) -> None:
        algorithm = session.algorithm
        if algorithm is not None and not self._is_part_of(algorithm):
            session.bind(None)
        if session.algorithm is None and self.auto_bind:
            algorithm = training_algorithm()
            if algorithm is not None and self._is_part_of(algorithm):
                self.bind(algorithm)

    def _is_part_of(self, algorithm: BaseAlgorithm) -> bool:
        policy = getattr(algorithm, "policy", None)  # missing while SB3 builds it
        return policy is None or any(module is self for module in policy.modules())

    @property
    def infonce_coef(self) -> float:
        """Weight of the loss: the schedule's while `learn()` runs with one, else its own."""
        scheduled = self._session.steering.infonce_coef
        return self._own_coef if scheduled is None else scheduled

    @infonce_coef.setter
    def infonce_coef(self, coef: float) -> None:
        check_number("infonce_coef", coef, at_least=0)
        self._own_coef = coef

    def steer(self, *, decoupled: bool = False, infonce_coef: float | None = None) -> None:
        """Change the loss until the current `learn()` of the bound algorithm ends.

        Args:
            decoupled: Whether the loss leaves the host's backward alone.
            infonce_coef: Weight of the loss, >= 0; None keeps the extractor's own.
        """
        if infonce_coef is not None:
            check_number("infonce_coef", infonce_coef, at_least=0)
        self._session.steer(Steering(decoupled, infonce_coef))

    # -- forward ---------------------------------------------------------------------------------

    def forward(self, observations: Tensor) -> Tensor:
        """Return features [K, D]; while the host trains, their backward carries the loss.

        Args:
            observations: [K, C, H, W] float images, preprocessed by SB3.
        """
        # Both flags: SAC's target critic runs with gradients on, rollouts with training on.
        if not (self.training and torch.is_grad_enabled() and self._is_updating()):
            return self.encode(observations).features
        self._compute_gradients()  # first, so that its graph is freed before the host's is built
        if self.augment_observations:
            observations = random_shift(observations, self._session.rng)
        features: Tensor = self._attach(self.encode(observations).features)
        return features

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _is_updating(self) -> bool:
        """Return whether the bound algorithm asks: SB3 leaves policies in training mode."""
        algorithm = self._session.algorithm
        return algorithm is None or not self.auto_bind or is_updating(algorithm)

    # -- the auxiliary loss ----------------------------------------------------------------------

    def experience(self) -> Experience | None:
        """Return what the bound algorithm has recorded; None, after one warning, if unreadable."""
        return self._session.experience()

    def infonce_loss(self, experience: Experience) -> TemporalInfoNCELoss | None:
        """Return the loss on pairs freshly drawn from `experience`, with its graph.

        Diagnostics go to the algorithm's logger and to `last_infonce`. None, after one warning, if
        there are fewer than two legal pairs.
        """
        session = self._session
        if self.infonce is None:
            return None
        raw = sample_batch(experience, self._plan, session.rng)
        if raw is None:
            self._warn_of_no_pairs(experience)
            self._log({"n_pairs": 0.0})
            return None
        if self.target is not None and not self.target.get_buffer("n_updates"):
            self._move_average(self.target)  # SB3 may have drawn the weights anew since
        batch = self._encode_batch(raw)
        result: TemporalInfoNCELoss = self.infonce(batch, self.horizons)
        session.n_updates += 1
        self._report(result, raw, batch)
        if self.target is not None:
            self._move_average(self.target)
        return result

    @torch.no_grad()
    def _move_average(self, target: MovingAverage) -> None:
        """Move the target encoder once for the same weights: SAC asks its critic twice a step."""
        parameters = self.encoder_parameters()
        sums = torch.stack([parameter.float().sum() for parameter in parameters.values()]).tolist()
        if sums != self._session.averaged:
            target.update(parameters)
            self._session.averaged = sums

    def _warn_of_no_pairs(self, experience: Experience) -> None:
        off_policy = isinstance(self._session.algorithm, OffPolicyAlgorithm)
        if off_policy and experience.n_steps <= 10 * max(self.horizons):
            return  # a replay buffer starts empty, after load() too, and fills by itself
        self._session.warn_once(
            "no pairs",
            f"Fewer than two pairs of observations lie {max(self.horizons)} steps apart in one "
            "episode, so that this update has no InfoNCE loss; the RL update goes on. Lower "
            "horizons, or raise n_steps or n_envs.",
        )

    def weighted_gradients(self, result: TemporalInfoNCELoss) -> AuxiliaryGradients | None:
        """Return the gradients of `infonce_coef` times the loss, on encoder and heads.

        None if they are not finite; these cases are counted and warned of. None, after one warning,
        if the loss depends on frozen parameters alone.

        Raises:
            FloatingPointError: After many non-finite losses in a row.
        """
        if not result.loss.requires_grad:
            self._session.warn_once(
                "frozen",
                "The InfoNCE loss trains nothing: it depends on parameters with "
                "requires_grad=False alone. Its curves go on; infonce_coef=0 saves its time.",
            )
            return None
        shared = [p for p in self.encoder_parameters().values() if p.requires_grad]
        if not shared:
            self._session.warn_once(
                "frozen encoder",
                "The encoder is frozen: the InfoNCE loss trains its own heads alone, and their "
                "gradient counts where the algorithm clips. infonce_coef=0 leaves it out.",
            )
        named = self.named_parameters()
        heads = [p for n, p in named if n.startswith("infonce.") and p.requires_grad]
        auxiliary = auxiliary_gradients(self.infonce_coef * result.loss, shared, heads)
        norm = torch.nn.utils.get_total_norm(auxiliary.gradients)
        finite = math.isfinite(float(norm + result.loss.detach()))
        self._session.count_finite(finite=finite)
        return auxiliary if finite else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _compute_gradients(self) -> None:
        """Leave the gradients of the weighted loss, ready to attach, in `_pending`."""
        self._pending = None
        experience = self.experience() if self._may_attach() else None
        result = None if experience is None else self.infonce_loss(experience)
        if result is not None:
            self._pending = self.weighted_gradients(result)

    def _may_attach(self) -> bool:
        session = self._session
        if self.infonce_coef == 0 or session.steering.decoupled:
            return False
        algorithm = session.algorithm
        if algorithm is None:
            session.warn_once(
                "unbound",
                "InfoNCEExtractor trains without its loss: it does not know which algorithm owns "
                "it. Call extractor.bind(model), or pass InfoNCECallback() to model.learn().",
            )
            return False
        reason = unfit_for_attaching(algorithm)
        if reason is not None:
            session.warn_once("unfit", f"The InfoNCE loss is off: {reason}.")
        return reason is None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attach(self, features: Tensor) -> Tensor:
        auxiliary, self._pending = self._pending, None
        session = self._session
        session.withdraw_hooks()  # of a backward that never came
        if auxiliary is None:
            return features
        is_compared = session.details_due or self.max_grad_ratio is not None
        if is_compared and auxiliary.n_shared:  # a frozen encoder shares none
            # SAC's actor loss passes through the critic, too, and those gradients are thrown away
            report = self._publish_gradients if session.details_due else _say_nothing
            session.withdraw_hooks = watch_gradients(
                auxiliary, report, max_ratio=self.max_grad_ratio
            )
        return attach_gradients(features, auxiliary)

    def _encode_batch(self, raw: ObservationBatch) -> ContrastBatch:
        averages = None if self.target is None else self.target.averages()

        def encode(observations: npt.NDArray[np.generic]) -> Encoded:
            return self.encode(self._images(observations))

        def encode_target(observations: npt.NDArray[np.generic]) -> Encoded:
            return self.encode(self._images(observations), averages)

        actions = None
        if raw.actions is not None and self._action_space is not None:
            actions = encode_actions(raw.actions, self._action_space, self.device)
        return contrast_batch(
            raw,
            encode,
            None if self.settings.target_encoder_tau is None else encode_target,
            spatial=self.settings.uses_maps,
            actions=actions,
        )

    def _images(self, observations: npt.NDArray[np.generic], *, augment: bool = True) -> Tensor:
        """Return observations as SB3 preprocesses them, converted on the encoder's device."""
        images = torch.as_tensor(observations).to(self.device)
        if augment and self.settings.augmentation == "random_shift":
            images = random_shift(images, self._session.rng)
        policy = getattr(self._session.algorithm, "policy", None)
        normalize_images = bool(getattr(policy, "normalize_images", True))
        return preprocess(images, self._observation_space, normalize_images=normalize_images)

    # -- diagnostics -----------------------------------------------------------------------------

    @torch.no_grad()
    def _report(
        self, result: TemporalInfoNCELoss, raw: ObservationBatch, batch: ContrastBatch
    ) -> None:
        session = self._session
        numbers = scalars_of(result, self.horizons)
        numbers["coef"] = self.infonce_coef
        numbers["n_pairs"] = float(raw.n_anchors)
        if session.n_nonfinite:
            numbers["n_nonfinite"] = float(session.n_nonfinite)
        if session.details_due:
            features = batch.context[:, -1]
            numbers |= feature_scalars(features) | self._floors(raw, batch.mask)
            self._warn_of_what_lasts(features, result)
        self._publish(numbers)

    def _warn_of_what_lasts(self, features: Tensor, result: TemporalInfoNCELoss) -> None:
        self._session.warn_if_it_lasts(
            "collapse",
            "The features have collapsed: they hardly differ between observations. Lower "
            "infonce_coef or the learning rate, and look at infonce/feature_std.",
            happens=has_collapsed(features),
        )
        saturated = is_saturated(result.mi_lower_bound, result.mi_ceiling)
        self._session.warn_if_it_lasts(
            "saturated bound",
            "The InfoNCE bound is saturated: nearly every future is found, and mi_lower_bound says "
            "nothing but log N. Longer horizons or more n_pairs leave something to learn.",
            happens=bool(saturated.all()),
        )

    def _floors(self, raw: ObservationBatch, masks: Tensor) -> dict[str, float]:
        session = self._session
        if session.frozen_trunk is None:
            session.frozen_trunk = random_encoder(self.cnn, seed=0)
        anchors = self._images(raw.context[:, -1], augment=False)
        futures = [self._images(images, augment=False) for images in raw.futures]
        frozen = session.frozen_trunk.to(self.device)
        return overlap_floors(frozen, anchors, futures, masks, self.horizons)

    def _publish_gradients(self, report: GradientReport) -> None:
        self._publish(report.scalars())

    def _publish(self, numbers: Mapping[str, float]) -> None:
        self.last_infonce.update(numbers)
        self._log(numbers)

    def _log(self, numbers: Mapping[str, float]) -> None:
        policy = getattr(self._session.algorithm, "policy", None)
        self._session.log(numbers, "" if policy is None else place_of(self, policy))

    # -- runs that go on -------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what the next update depends on beside the weights: random stream and counters."""
        return {**self._session.get_state(), "last_infonce": dict(self.last_infonce)}

    def set_state(self, state: Mapping[str, Any], *, games_go_on: bool = True) -> None:
        """Go on, in `learn`, where `get_state` was called on an extractor with the same weights.

        Args:
            state: Of `get_state`.
            games_go_on: Whether the environments do, too; otherwise `learn` has reset them.
        """
        self._session.set_state(state, games_go_on=games_go_on)
        self.last_infonce.update(state["last_infonce"])

    # -- construction and copies -----------------------------------------------------------------

    @property
    def _plan(self) -> SamplingPlan:
        settings = self.settings
        return SamplingPlan(
            horizons=self.horizons,
            n_pairs=settings.n_pairs,
            context_length=settings.n_context_steps,
            min_gap=settings.min_gap,
            with_actions=self._action_space is not None,
            shuffled=settings.positives == "shuffled",
        )

    def _new_heads(self, rng: np.random.Generator) -> TemporalInfoNCE:
        action_dim = 0 if self._action_space is None else get_flattened_obs_dim(self._action_space)
        n_channels, height, width = self.local_shape
        shape = ObjectiveShape(
            self.features_dim, n_channels, len(self.horizons), action_dim, height * width
        )
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        return TemporalInfoNCE(self.settings, shape, generator=generator)

    def _add_heads(self, algorithm: BaseAlgorithm | None) -> None:
        self.infonce: TemporalInfoNCE | None = None
        self.target: MovingAverage | None = None
        if algorithm is not None and is_gradient_free(algorithm):
            # Its perturbations cover every parameter, so that heads would change the search.
            self._session.warn_once("unfit", f"InfoNCE is off: {unfit_for_attaching(algorithm)}.")
            return
        self.infonce = self._new_heads(self._session.rng)
        tau = self.settings.target_encoder_tau
        if tau is not None and tau < 1:
            self.target = MovingAverage(self.encoder_parameters(), tau)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the session's stream alone: its weak reference must not travel."""
        stream = self._session.rng.bit_generator.state
        return {**self.__dict__, "_session": None, "_pending": None, "_stream": stream}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore an unbound extractor; it finds its algorithm again when that trains it."""
        own = dict(state)
        rng = np.random.default_rng()
        rng.bit_generator.state = own.pop("_stream")
        super().__setstate__(own)  # type: ignore[no-untyped-call]
        self._session = Session(rng, self.image_key)


def _say_nothing(_report: GradientReport) -> None:
    """Bound a gradient without a curve."""


def _stream(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAM])


def _are_equal(heads: TemporalInfoNCE, others: TemporalInfoNCE) -> bool:
    pairs = zip(heads.state_dict().values(), others.state_dict().values(), strict=True)
    return all(torch.equal(a.cpu(), b) for a, b in pairs)
