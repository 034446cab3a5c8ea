"""The settings of the loss, each declared once.

The extractor's arguments and their checks, the flags of `rl-infonce train`, the keys of a grid,
what `run.json` notes and the tables of the pages all come from the declarations here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any

from rl_infonce.checks import check_choice, check_horizons
from rl_infonce.former_names import FORMER_PRESETS
from rl_infonce.kinds import Choice, Choices, Count, Flag, Kind, Number

CRITICS = ("bilinear", "cosine", "mlp")
CONTEXTS = ("none", "gru")
AUGMENTATIONS = ("none", "random_shift")
POSITIVES = ("future", "shuffled")
TERMS = ("global", "global_local", "local_local", "positional")
PRECISIONS = ("fp32", "bf16")
ACTIVATIONS = ("relu", "elu", "crelu")
NORMALIZATIONS = ("none", "layer")
FEATURE_ACTIVATIONS = (*ACTIVATIONS, "linear", "average_l1", "simplicial")
OBJECTIVES = ("infonce", "self_prediction")
PREDICTORS = ("none", "gru", "mlp")


@dataclass(frozen=True)
class Horizons:
    """Distinct gaps in agent steps; 0 is legal between two random views of one observation."""

    words = "a list of distinct ints >= 1, or 0 with an augmentation"

    def check(self, _name: str, value: Any) -> None:
        """Raise unless `value` holds horizons."""
        check_horizons(value, allow_zero=True)

    def fits(self, value: Any) -> bool:
        """Return whether `value` is a list of ints."""
        is_list = isinstance(value, list | tuple)
        return is_list and all(type(each) is int for each in value)


@dataclass(frozen=True)
class Setting:
    """What a declaration says beside name, type and default.

    Attributes:
        kind: Which values are legal, beside None where that is the default.
        meaning: One sentence for help texts and tables.
        needs: Another setting and the value that it must have; None if nothing is needed.
        none: What None means, where that is the default; flags do not say it.
    """

    kind: Kind
    meaning: str
    needs: tuple[str, Any] | None = None
    none: str = ""

    @property
    def sentences(self) -> str:
        """The meaning, also of None."""
        return f"{self.meaning} None means {self.none}." if self.none else self.meaning


def setting(default: Any, kind: Kind, meaning: str, **more: Any) -> Any:
    """Declare a field of a dataclass as a setting; `needs` and `none` as in `Setting`."""
    return field(default=default, metadata={"setting": Setting(kind, meaning, **more)})


def declared(settings: Any) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by name and in order."""
    return {
        each.name: each.metadata["setting"]
        for each in fields(settings)
        if "setting" in each.metadata
    }


def defaults(settings: Any) -> dict[str, Any]:
    """Return the default of each setting that a dataclass declares."""
    own: dict[str, Field[Any]] = {each.name: each for each in fields(settings)}
    return {name: own[name].default for name in declared(settings)}


@dataclass(frozen=True, kw_only=True)
class InfoNCESettings:
    """What is contrasted, and how strongly. The losses are in nats, means over pairs and horizons.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range.
    """

    infonce_coef: float = setting(
        0.01,
        Number(at_least=0),
        "Weight of the InfoNCE loss beside the RL loss; 0 is the baseline. Isolated encoders "
        "train alike with all values above 0, as Adam cancels a constant factor.",
    )
    horizons: Sequence[int] | None = setting(
        None,
        Horizons(),
        "Agent steps from anchor to positive.",
        none="the frame stack, at least 4: stacked frames then share no pixels",
    )
    n_pairs: int = setting(
        32, Count(2), "Anchors per gradient step; the futures of the others are the negatives."
    )
    objective: str = setting(
        "infonce",
        Choice(OBJECTIVES),
        "Whether the future is told from negatives, or features are predicted without any, by the "
        "cosine.",
    )
    critic: str = setting(
        "cosine",
        Choice(CRITICS),
        "How pairs of features are scored.",
        needs=("objective", "infonce"),
    )
    temperature: float = setting(
        0.1, Number(above=0), "Divides the cosine.", needs=("critic", "cosine")
    )
    learn_temperature: bool = setting(
        False,
        Flag(),
        "Whether the temperature is trained, inside [0.01, 1].",
        needs=("critic", "cosine"),
    )
    terms: Sequence[str] = setting(
        ("global",),
        Choices(TERMS),
        "What is contrasted: features with features, with each place of the convolutional map, "
        "places with places, or features with each place by a critic of its own.",
    )
    centred: bool = setting(
        True, Flag(), "Whether the mean over the batch is subtracted before the critic."
    )
    context: str = setting(
        "none", Choice(CONTEXTS), "Whether a GRU summarises the last features into the anchor."
    )
    context_length: int = setting(
        8, Count(), "Steps that the GRU sees, the anchor included.", needs=("context", "gru")
    )
    action_conditioning: bool = setting(
        False, Flag(), "Whether predictions see the actions in between (CPC|A)."
    )
    predictor: str | None = setting(
        None,
        Choice(PREDICTORS),
        "What rolls features forward, step by step, before the critic sees them.",
        none="mlp for self_prediction, gru with action_conditioning, and else none: the critic has "
        "weights for each horizon",
    )
    augmentation: str = setting(
        "none", Choice(AUGMENTATIONS), "Whether the loss sees images moved by up to 4 pixels."
    )
    target_encoder_tau: float | None = setting(
        None,
        Number(above=0, at_most=1),
        "Speed of the averaged encoder of the positives; 1 stops their gradient instead.",
        none="training through anchors and positives, where the preset has no value",
    )
    positives: str = setting(
        "future",
        Choice(POSITIVES),
        "Whether positives are the anchors' own futures, or for a placebo those of other anchors.",
    )
    min_gap: int = setting(
        4,
        Count(0),
        "Steps that a negative of the anchor's own episode keeps from the anchor's future.",
    )
    segment_length: int = setting(
        1,
        Count(),
        "Consecutive steps that are anchors together. Above 1, a future has to be told from those "
        "shortly before and after it.",
    )
    augment_observations: bool = setting(
        False,
        Flag(),
        "Whether the RL loss also sees moved images (RAD), where it computes gradients.",
    )
    max_grad_ratio: float | None = setting(
        None,
        Number(above=0),
        "Largest norm of the loss's gradient on the encoder, in norms of the RL gradient.",
        needs=("isolated", False),
        none="no bound",
    )
    isolated: bool = setting(
        False,
        Flag(),
        "Whether the loss alone trains the encoder, in updates of its own, and RL's gradient stays "
        "out of it.",
    )
    encoder_learning_rate: float | None = setting(
        None,
        Number(above=0),
        "Learning rate of those updates.",
        needs=("isolated", True),
        none="0.001 after a rollout, and 0.0003 after a gradient step",
    )
    encoder_updates: int | None = setting(
        None,
        Count(),
        "Updates after each rollout, or after each gradient step of an off-policy algorithm.",
        needs=("isolated", True),
        none="as many as take each row of a rollout for an anchor six times, and 1",
    )
    policy_encoder_tau: float | None = setting(
        None,
        Number(above=0, at_most=1),
        "Speed, per update, of the averaged encoder that the policy reads.",
        needs=("isolated", True),
        none="reading the encoder that is trained, where the preset has no value",
    )
    input_sparsity: float = setting(
        0.0,
        Number(at_least=0, at_most=1),
        "Weight of a group lasso on the inputs of the encoder of vectors, in steps of Adam: it "
        "takes out inputs that the loss has no use for, such as noise.",
        needs=("isolated", True),
    )
    with_observation: bool = setting(
        True, Flag(), "Whether the policy receives a vector beside its features."
    )
    activation: str = setting(
        "relu",
        Choice(ACTIVATIONS),
        "Non-linearity of the encoder of images; crelu doubles the outputs of each convolution.",
    )
    normalization: str = setting(
        "none",
        Choice(NORMALIZATIONS),
        "Whether a layer norm stands before every non-linearity of the encoder of images.",
    )
    feature_activation: str | None = setting(
        None,
        Choice(FEATURE_ACTIVATIONS),
        "What becomes of the last linear layer's outputs, before policy and loss read them as "
        "features of images.",
        none="what `activation` says",
    )
    simplex_size: int = setting(
        8,
        Count(2),
        "Features in a group, over which a softmax is taken.",
        needs=("feature_activation", "simplicial"),
    )
    simplex_temperature: float = setting(
        1.0,
        Number(above=0),
        "Divides the features before the softmax.",
        needs=("feature_activation", "simplicial"),
    )
    precision: str = setting(
        "fp32", Choice(PRECISIONS), "Arithmetic of the encoder; bf16 is bfloat16 autocast."
    )

    def __post_init__(self) -> None:
        if self.horizons is not None:
            # With two random views of one observation, horizon 0 is CURL; without, it is trivial.
            check_horizons(self.horizons, allow_zero=self.augmentation != "none")
        check_declared(self)

    @property
    def rolls_forward_by(self) -> str:
        """The predictor: the one that was named, or the usual one."""
        if self.objective == "self_prediction":
            return self.predictor or "mlp"
        return self.predictor or ("gru" if self.action_conditioning else "none")

    @property
    def stops_gradient(self) -> bool:
        """Whether positives have no gradient; without negatives, all features would be equal."""
        return self.target_encoder_tau is not None or self.objective == "self_prediction"

    @property
    def of_encoder(self) -> dict[str, Any]:
        """What stands between the linear layers of an encoder of images, by name."""
        return {name: getattr(self, name) for name in ENCODER_SETTINGS}

    @property
    def n_context_steps(self) -> int:
        """Observations that a prediction reads, the anchor's included."""
        return self.context_length if self.context == "gru" else 1

    @property
    def uses_maps(self) -> bool:
        """Whether a term contrasts convolutional maps."""
        return any(term != "global" for term in self.terms)


@dataclass(frozen=True, kw_only=True)
class DecoupledSettings:
    """How `InfoNCECallback` trains the encoder in updates of its own, after those of RL."""

    decoupled: bool = setting(
        False, Flag(), "Whether the loss trains the encoder in updates of its own, after RL's."
    )
    decoupled_learning_rate: float | None = setting(
        None,
        Number(above=0),
        "Learning rate of those updates (0.001).",
        needs=("decoupled", True),
    )


def check_declared(settings: Any) -> None:
    """Raise unless each declared setting of a dataclass's instance is legal on its own.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range.
    """
    for name, default in defaults(settings).items():
        value = getattr(settings, name)
        if value is not None or default is not None:
            declared(settings)[name].kind.check(name, value)


ENCODER_SETTINGS: Mapping[str, Setting] = {
    name: declared(InfoNCESettings)[name]
    for name in (
        "activation",
        "normalization",
        "feature_activation",
        "simplex_size",
        "simplex_temperature",
    )
}
"""What stands between the linear layers of an encoder of images."""

PRESETS: Mapping[str, InfoNCESettings] = {
    # van den Oord et al. 2018, section 3.4, without the recurrent context (context="gru" adds it).
    "cpc": InfoNCESettings(),
    # The spatial terms of Anand et al. 2019 in CPC's direction: bilinear, no temperature. Unlike
    # `pretraining.SpatioTemporalDIM`, which keeps to the published code, both sides pass a layer
    # norm, scores are divided by the root of the map's channels and have no bias, the batch is
    # centred, near and equal candidates are masked, and now predicts then, not before.
    "spatial_cpc": InfoNCESettings(terms=("global_local", "local_local"), critic="bilinear"),
    # Ours: the same, but features must say what stands where.
    "positional_cpc": InfoNCESettings(terms=("positional", "local_local"), critic="bilinear"),
    # Guo et al. 2018 (CPC|A) one step ahead, of vectors: what will this action make of this state?
    "action_cpc": InfoNCESettings(
        action_conditioning=True,
        n_pairs=256,
        min_gap=1,
        isolated=True,
        policy_encoder_tau=0.01,
        input_sparsity=0.03,
        with_observation=False,
    ),
    # Stooke et al. 2021: random shift, slowly moving target, bilinear; without their projection.
    "atc": InfoNCESettings(critic="bilinear", augmentation="random_shift", target_encoder_tau=0.01),
    # Laskin et al. 2020: two shifted views of one observation, moving target.
    "curl": InfoNCESettings(
        critic="bilinear", horizons=(0,), augmentation="random_shift", target_encoder_tau=0.01
    ),
}
PRESET = Setting(
    Choice(tuple(PRESETS)),
    "Which loss, from the literature, the settings begin with.",
    none="cpc for images and action_cpc for vectors",
)

LOSS_SETTINGS: Mapping[str, Setting] = {
    "preset": PRESET,
    **declared(InfoNCESettings),
    **declared(DecoupledSettings),
}
"""All that a training may say about its loss, as flags and in grids."""


def current_preset(preset: str) -> str:
    """Return the name that a preset has now; warn if it had another one."""
    if isinstance(preset, str) and preset in FORMER_PRESETS:
        warnings.warn(
            f"The preset {preset!r} is called {FORMER_PRESETS[preset]!r} now.",
            FutureWarning,
            stacklevel=3,
        )
        return FORMER_PRESETS[preset]
    return preset


def usual_preset(*, vectors: bool) -> str:
    """Return the preset of images, or that of vectors."""
    return "action_cpc" if vectors else "cpc"


def check_fits_vectors(settings: InfoNCESettings, preset: str, encoder: str | None) -> None:
    """Raise a ValueError if settings need images: their places, their pixels or a CNN."""
    needs_images = {
        "terms": settings.uses_maps and settings.terms,
        "augmentation": settings.augmentation != "none" and settings.augmentation,
        "augment_observations": settings.augment_observations,
        "encoder": encoder,
        **settings.of_encoder,
    }
    usual = defaults(InfoNCESettings)
    for name, given in needs_images.items():
        if given and given != usual.get(name):
            fit = [each for each in PRESETS if not _needs_images(PRESETS[each])]
            is_of_preset = getattr(PRESETS[preset], name, None) == given
            way_out = f"Take a preset among {', '.join(fit)}." if is_of_preset else "Leave it out."
            source = f" of preset={preset!r}" if is_of_preset else ""
            raise ValueError(
                f"Expected `{name}` to fit vectors, got {given!r}{source}, which needs images. "
                f"{way_out}"
            )


def check_fits_images(settings: InfoNCESettings, preset: str) -> None:
    """Raise a ValueError if settings need vectors, or moved images are seen by no loss of RL."""
    if settings.augment_observations and settings.isolated:
        raise ValueError(
            "Expected `augment_observations` with an encoder that RL trains, got it with "
            "isolated=True, where RL's loss does not reach the encoder. Leave one of them out."
        )
    if settings.input_sparsity:
        raise ValueError(
            f"Expected `input_sparsity` to fit images, got {settings.input_sparsity} with "
            f"preset={preset!r}: its group lasso takes out dimensions of vectors. Leave the preset "
            "out, or add input_sparsity=0."
        )


def _needs_images(settings: InfoNCESettings) -> bool:
    return settings.uses_maps or settings.augmentation != "none"


def preset_settings(preset: str, changes: Mapping[str, Any]) -> InfoNCESettings:
    """Return the settings of a preset with the given changes; a change to None keeps the preset's.

    Args:
        preset: A key of `PRESETS`, or the name that it had before.
        changes: Field name to new setting.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If the preset or a setting is not legal; the message names the argument.
    """
    preset = current_preset(preset)
    check_choice("preset", preset, PRESETS)
    given = {name: change for name, change in changes.items() if change is not None}
    for name in given:
        check_choice("setting", name, declared(InfoNCESettings))
    for name in {"horizons", "terms"} & given.keys():
        given[name] = _as_tuple(given[name])
    settings = replace(PRESETS[preset], **given)
    _check_used(settings, given)
    return settings


def _check_used(settings: InfoNCESettings, given: Mapping[str, Any]) -> None:
    """Raise if a setting was asked for that the others leave without effect."""
    for name in given:
        needs = declared(settings)[name].needs
        if needs is not None and getattr(settings, needs[0]) != needs[1]:
            other, value = needs
            raise ValueError(
                f"Expected `{name}` with {other}={value!r} alone, got it with "
                f"{other}={getattr(settings, other)!r}, which does not use it. Leave it out, or "
                f"add {other}={value!r}."
            )
    _check_predictor(settings)
    if 1 < settings.segment_length <= settings.min_gap:
        raise ValueError(
            f"Expected `min_gap` below segment_length={settings.segment_length}, got "
            f"{settings.min_gap}, which leaves all futures of a segment out of its negatives. Add "
            "min_gap=1."
        )
    if "context" in given and settings.context != "none" and settings.terms == ("local_local",):
        raise ValueError(
            f"Expected `context`={settings.context!r} with a term that predicts from features, got "
            "terms=('local_local',), which does not use it. Leave it out."
        )


def _check_predictor(settings: InfoNCESettings) -> None:
    """Raise if nothing predicts, or places are to be predicted without negatives."""
    predicts = settings.objective == "self_prediction"
    if settings.rolls_forward_by == "none" and (predicts or settings.action_conditioning):
        needing = "objective='self_prediction'" if predicts else "action_conditioning=True"
        raise ValueError(
            f"Expected `predictor` to be gru or mlp with {needing}, got 'none', which looks at no "
            "action and changes no feature. Leave it out."
        )
    if predicts and settings.terms != ("global",):
        raise ValueError(
            "Expected `terms`=('global',) with objective='self_prediction', which predicts "
            f"features, got {settings.terms}. Leave it out."
        )


def _as_tuple(given: Any) -> tuple[Any, ...]:
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if is_one else tuple(given)


def noted(settings: InfoNCESettings, horizons: Sequence[int]) -> dict[str, Any]:
    """Return settings as `run.json` notes them, with the horizons that they came to."""
    return {**asdict(settings), "horizons": list(horizons)}


def settings_table(settings: Any) -> str:
    """Return a Markdown table of the settings that a dataclass declares, with their defaults."""
    rows = ["| setting | default | other presets | meaning |", "|---|---|---|---|"]
    own = defaults(settings)
    for name, each in declared(settings).items():
        kind = f" ({each.kind.words})" if isinstance(each.kind, Choice | Choices) else ""
        needs = "" if each.needs is None else f" Needs `{each.needs[0]}={each.needs[1]!r}`."
        meaning = f"{each.sentences}{kind}{needs}".replace("|", "\\|")
        rows.append(f"| `{name}` | `{own[name]!r}` | {other_presets(name)} | {meaning} |")
    return "\n".join(rows) + "\n"


def other_presets(name: str) -> str:
    """Return which presets have another value of a setting than "cpc", and which."""
    by_value: dict[str, list[str]] = {}
    for preset, settings in PRESETS.items():
        value = getattr(settings, name, None)
        if value != getattr(PRESETS["cpc"], name, None):
            by_value.setdefault(f"`{value!r}`", []).append(preset)
    return "; ".join(f"{', '.join(presets)}: {value}" for value, presets in by_value.items())
