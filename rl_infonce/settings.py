"""The settings of the loss, each declared once.

The extractor's arguments and their checks, the flags of `rl-infonce train`, the keys of a grid,
what `run.json` notes and the tables of the pages all come from the declarations here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from rl_infonce.checks import check_horizons
from rl_infonce.kinds import Choice, Choices, Count, Flag, Kind, NameOrFunction, Number

CRITICS = ("bilinear", "cosine", "mlp")
CONTEXTS = ("none", "gru")
AUGMENTATIONS = ("none", "random_shift")
POSITIVES = ("future", "shuffled")
PAIR_SOURCES = ("buffer", "minibatch", "auto")

AUTO_ROWS = 256
"""Rows of RL's minibatch, at least, from which `pairs_from="auto"` takes pairs."""

AUTO_SHARE = 0.66
"""Part of `infonce_coef` that these pairs have, whose hundreds of candidates pull harder than 32.

On four Atari games their gradients on the encoder are then about those of 32 drawn pairs.
"""

TERMS = ("global", "global_local", "local_local", "positional")
PRECISIONS = ("fp32", "bf16", "auto")
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
        none: What None means, where that is the default, so that it follows a colon.
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
        "train alike with all values above 0.",
    )
    infonce_interval: int = setting(
        1,
        Count(),
        "Updates of RL from one that carries the loss to the next: with 8, seven of eight take no "
        "time for it. Isolated encoders of off-policy algorithms have updates of their own after "
        "one of so many, those of on-policy ones have `encoder_updates` alone.",
    )
    horizons: Sequence[int] | None = setting(
        None,
        Horizons(),
        "Agent steps from anchor to positive.",
        none="1 for vectors, and for images the frame stack, at least 4: stacked frames then share "
        "no pixels",
    )
    n_pairs: int = setting(
        32,
        Count(2),
        "Anchors per gradient step; the futures of the others are the negatives. A minibatch of RL "
        "may hold more of both.",
    )
    pairs_from: str = setting(
        "auto",
        Choice(PAIR_SOURCES),
        "Where pairs come from: drawn from the buffer and encoded beside RL's minibatch, or found "
        "in the minibatch, which RL encodes anyway: all its pairs, with more of its anchors up to "
        "n_pairs, and all its futures as candidates. auto takes the minibatch, at "
        f"{AUTO_SHARE} of infonce_coef, where an on-policy algorithm trains on images with "
        f"minibatches of {AUTO_ROWS} rows and n_pairs rows or more, and the loss has the form of "
        "cpc and no max_grad_ratio; elsewhere it draws.",
    )
    objective: str | Callable[[int, int], Any] = setting(
        "infonce",
        NameOrFunction(
            OBJECTIVES, "a function of the sizes of features and actions that makes your own loss"
        ),
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
    terms: Sequence[str] = setting(
        ("global",),
        Choices(TERMS),
        "What is contrasted: features with features, with each place of the convolutional map, "
        "places with places, or features with each place by a critic of its own.",
    )
    centred: bool = setting(
        True,
        Flag(),
        "Whether the mean over the batch is subtracted before the critic.",
        needs=("objective", "infonce"),
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
        none="six times the rows of a rollout over n_pairs, and 1",
    )
    policy_encoder_tau: float | None = setting(
        None,
        Number(above=0, at_most=1),
        "Speed, per update, of the averaged encoder that the policy reads.",
        needs=("isolated", True),
        none="reading the encoder that is trained, where the preset has no value",
    )
    align_features: bool | None = setting(
        None,
        Flag(),
        "Whether new features are turned and shifted to lie closest to the old ones, after 8 "
        "updates or more, so that the policy need not learn them anew.",
        needs=("isolated", True),
        none="doing so after the rollouts of on-policy algorithms alone",
    )
    input_sparsity: float = setting(
        0.0,
        Number(at_least=0, at_most=1),
        "Weight of a group lasso on the inputs of the encoder of vectors, in steps of Adam: it "
        "takes out inputs that the loss has no use for, such as noise.",
        needs=("isolated", True),
    )
    with_observation: bool | None = setting(
        None,
        Flag(),
        "Whether the policy receives a vector beside its features.",
        none="doing so, except with isolated action_cpc in off-policy algorithms, such as SAC, TD3 "
        "and DQN",
    )
    select_inputs: bool | None = setting(
        None,
        Flag(),
        "Whether the policy receives those inputs of a vector alone, in its features also, whose "
        "permutation raises the loss on new pairs; the others stand at their means.",
        needs=("isolated", True),
        none="doing so with action_cpc in on-policy algorithms alone",
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
    precision: str = setting(
        "fp32",
        Choice(PRECISIONS),
        "Arithmetic of the encoder; bf16 is bfloat16 autocast, and auto takes it for images where "
        "the processor or the GPU multiplies it in hardware.",
    )

    def __post_init__(self) -> None:
        if self.horizons is not None:
            # With two random views of one observation, horizon 0 is CURL; without, it is trivial.
            check_horizons(self.horizons, allow_zero=self.augmentation != "none")
        check_declared(self)
        if self.pairs_from == "minibatch":
            _check_fits_minibatch(self)

    @property
    def has_custom_objective(self) -> bool:
        """Whether the loss is the user's own."""
        return callable(self.objective)

    @property
    def rolls_forward_by(self) -> str:
        """The predictor: the one that was named, or the usual one."""
        if self.has_custom_objective:
            return "none"
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


def unfit_for_minibatch(settings: InfoNCESettings) -> tuple[str, str] | None:
    """Return a setting that asks for more than what RL encodes, and what does not; or None."""
    n_horizons = len(settings.horizons or (1,))
    fits: dict[str, tuple[bool, str]] = {
        "horizons": (n_horizons == 1, "one of them"),
        "context": (settings.context == "none", "'none'"),
        "augmentation": (settings.augmentation == "none", "'none'"),
        "augment_observations": (not settings.augment_observations, "False"),
        "target_encoder_tau": (
            settings.target_encoder_tau in (None, 1),
            "1",
        ),
        "isolated": (not settings.isolated, "False"),
        "auto_bind": (getattr(settings, "auto_bind", True), "True"),  # of the extractor
    }
    return next(((name, wanted) for name, (is_fit, wanted) in fits.items() if not is_fit), None)


def _check_fits_minibatch(settings: InfoNCESettings) -> None:
    """Raise a ValueError unless what RL encodes is all that the loss encodes."""
    unfit = unfit_for_minibatch(settings)
    if unfit is not None:
        name, wanted = unfit
        raise ValueError(
            f"Expected `pairs_from` 'buffer' with {name}={getattr(settings, name)!r}, got "
            "'minibatch', which takes pairs from the observations that RL encodes: one view of "
            "each, by the encoder that RL trains. Leave out `pairs_from`, or set "
            f"`{name}` to {wanted}."
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
    for name in ("activation", "normalization", "feature_activation")
}
"""What stands between the linear layers of an encoder of images."""
