"""Named settings of the temporal InfoNCE objective and their validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rl_infonce.checks import check_choice, check_count, check_flag, check_number
from rl_infonce.temporal import check_horizons

CRITICS = ("bilinear", "cosine", "mlp")
CONTEXTS = ("none", "gru")
AUGMENTATIONS = ("none", "random_shift")
POSITIVES = ("future", "shuffled")
TERMS = ("global", "global_local", "local_local", "positional")


@dataclass(frozen=True)
class InfoNCESettings:
    """What the objective contrasts, and how strongly.

    Attributes:
        infonce_coef: Weight of the loss (in nats, averaged over pairs and horizons) beside the RL
            loss, >= 0.
        horizons: Gaps between anchor and positive, in agent steps; None means "the frame stack,
            at least 4", the smallest gap at which stacked frames surely share no pixels.
        n_pairs: Anchors per gradient step, >= 2; each has n_pairs - 1 in-batch negatives.
        critic: How features are scored: "bilinear", "cosine" or "mlp".
        temperature: Divides the cosine, > 0.
        learn_temperature: Whether the temperature is a parameter, kept in [0.01, 1].
        terms: Which scores are contrasted: "global" (features with features), "global_local"
            (features with each position of the convolutional map), "local_local", and "positional":
            as "global_local", each position reading the features by a critic of its own.
        centred: Whether both sides are centred over the batch before the critic.
        context: "gru" summarises the last `context_length` features into c_t; "none" uses z_t.
        context_length: Steps the GRU sees, >= 1.
        augmentation: "random_shift" moves every image by up to 4 pixels (Kostrikov et al. 2020).
        target_encoder_tau: None trains through anchors and positives; 1.0 stops the gradient at
            the positives; between, the positives come from an exponential moving average.
        positives: "future", or "shuffled" for the future of another anchor of the batch: the
            placebo, of the same cost and without what time tells.
        min_gap: Candidates of the anchor's own episode closer than this many steps to the positive
            are not used as negatives; 0 uses all. With "shuffled" positives all futures but the
            anchor's own are candidates.
    """

    infonce_coef: float = 0.01
    horizons: tuple[int, ...] | None = None
    n_pairs: int = 32
    critic: str = "cosine"
    temperature: float = 0.1
    learn_temperature: bool = False
    terms: tuple[str, ...] = ("global",)
    centred: bool = True
    context: str = "none"
    context_length: int = 8
    augmentation: str = "none"
    target_encoder_tau: float | None = None
    positives: str = "future"
    min_gap: int = 4

    def __post_init__(self) -> None:
        check_number("infonce_coef", self.infonce_coef, at_least=0)
        check_number("temperature", self.temperature, above=0)
        check_flag("learn_temperature", self.learn_temperature)
        check_flag("centred", self.centred)
        check_count("n_pairs", self.n_pairs, at_least=2)
        check_count("context_length", self.context_length)
        check_count("min_gap", self.min_gap, at_least=0)
        check_choice("critic", self.critic, CRITICS)
        check_choice("context", self.context, CONTEXTS)
        check_choice("positives", self.positives, POSITIVES)
        check_choice("augmentation", self.augmentation, AUGMENTATIONS)
        _check_terms(self.terms)
        if self.target_encoder_tau is not None:
            check_number("target_encoder_tau", self.target_encoder_tau, above=0, at_most=1)
        if self.horizons is not None:
            # With two random views of one observation, horizon 0 is CURL; without, it is trivial.
            views_differ = self.augmentation != "none"
            check_horizons(self.horizons, allow_zero=views_differ)

    @property
    def n_context_steps(self) -> int:
        """Observations that a prediction reads, the anchor's included."""
        return self.context_length if self.context == "gru" else 1

    @property
    def uses_maps(self) -> bool:
        """Whether a term contrasts convolutional maps."""
        return any(term != "global" for term in self.terms)


def _check_terms(terms: Sequence[str]) -> None:
    if not terms or len(set(terms)) != len(terms):
        raise ValueError(
            f"Expected `terms` to be distinct and non-empty, of {TERMS}, got {terms!r}."
        )
    for term in terms:
        check_choice("terms", term, TERMS)


PRESETS: Mapping[str, InfoNCESettings] = {
    # van den Oord et al. 2018, section 3.4, without the recurrent context (context="gru" adds it).
    "cpc": InfoNCESettings(),
    # Anand et al. 2019: only the spatial terms, bilinear, no temperature. Not the loss of
    # `pretraining.SpatioTemporalDIM`, which keeps to the published code: here both sides pass a
    # layer norm, scores are divided by the root of the map's channels and have no bias, the batch
    # is centred, near and equal candidates are masked, and now predicts then, not before.
    "stdim": InfoNCESettings(terms=("global_local", "local_local"), critic="bilinear"),
    # Ours: ST-DIM, but features must say what stands where.
    "positional_dim": InfoNCESettings(terms=("positional", "local_local"), critic="bilinear"),
    # Stooke et al. 2021: random shift, slowly moving target, bilinear; without their projection.
    "atc": InfoNCESettings(critic="bilinear", augmentation="random_shift", target_encoder_tau=0.01),
    # Laskin et al. 2020: two shifted views of one observation, moving target.
    "curl": InfoNCESettings(
        critic="bilinear", horizons=(0,), augmentation="random_shift", target_encoder_tau=0.01
    ),
}


def preset_settings(preset: str, changes: Mapping[str, Any]) -> InfoNCESettings:
    """Return the settings of a preset with the given changes; a change to None keeps the preset's.

    Args:
        preset: A key of `PRESETS`.
        changes: Field name to new setting.

    Raises:
        ValueError: If the preset or a setting is not legal; the message names the argument.
    """
    check_choice("preset", preset, PRESETS)
    known = {field.name for field in fields(InfoNCESettings)}
    given = {name: change for name, change in changes.items() if change is not None}
    for name in given:
        check_choice("setting", name, known)
    for name in ("horizons", "terms"):
        if name in given:
            given[name] = _as_tuple(given[name])
    settings = replace(PRESETS[preset], **given)
    _check_used(settings, given)
    return settings


def _check_used(settings: InfoNCESettings, given: Mapping[str, Any]) -> None:
    """Raise if a setting was asked for that the others leave without effect."""
    needs = {
        "temperature": ("critic", "cosine"),
        "learn_temperature": ("critic", "cosine"),
        "context_length": ("context", "gru"),
    }
    for name, (other, value) in needs.items():
        if name in given and getattr(settings, other) != value:
            raise ValueError(
                f"Expected `{name}` with {other}={value!r} alone, got it with "
                f"{other}={getattr(settings, other)!r}, which does not use it. Leave it out."
            )
    if "context" in given and settings.context != "none" and settings.terms == ("local_local",):
        raise ValueError(
            f"Expected `context`={settings.context!r} with a term that predicts from features, got "
            "terms=('local_local',), which does not use it. Leave it out."
        )


def _as_tuple(given: Any) -> tuple[Any, ...]:
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if is_one else tuple(given)
