"""The arguments of `InfoNCEExtractor`: the settings of the loss, and how it meets its host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from difflib import get_close_matches
from textwrap import fill
from typing import Any, Concatenate, ParamSpec

from gymnasium import spaces
from torch import nn

from rl_infonce.kinds import Count, Flag, NameOrFunction, Typed, words_in_python
from rl_infonce.presets import (
    ENCODER,
    ENCODER_NAMES,
    PRESET,
    check_fits_custom_encoder,
    check_fits_custom_objective,
    check_fits_images,
    check_fits_vectors,
    other_presets,
    preset_settings,
    usual_preset,
)
from rl_infonce.settings import (
    InfoNCESettings,
    declared,
    defaults,
    setting,
    unfit_for_minibatch,
)

_P = ParamSpec("_P")


@dataclass(frozen=True)
class ExtractorArguments(InfoNCESettings):
    """Every argument of `InfoNCEExtractor` but the observation space.

    A setting of the loss that is not given, or is None, takes the value of the preset.
    """

    features_dim: int | None = setting(
        None,
        Count(),
        "Number D of features.",
        none="512 for images and 64 for vectors",
    )
    _: KW_ONLY
    preset: str | None = setting(None, PRESET.kind, PRESET.meaning, none=PRESET.none)
    encoder: str | Callable[[spaces.Box], nn.Module] | None = setting(
        None,
        NameOrFunction(
            ENCODER_NAMES, "a function of the observation space that makes a network of your own"
        ),
        ENCODER.meaning,
        none=ENCODER.none,
    )
    action_space: spaces.Space[Any] | None = setting(
        None,
        Typed(spaces.Space, "a gymnasium space"),
        "Actions of `action_conditioning`, where no SB3 policy builds the extractor.",
    )
    channels_last: bool = setting(
        True,
        Flag(),
        "Whether convolutions run channels-last: faster on most CPUs, equal up to rounding. False "
        "makes `infonce_coef=0` equal NatureCNN to the last bit.",
    )
    seed: int | None = setting(
        None,
        Count(0),
        "Seed of pairs, augmentations and the loss's own layers, which `set_random_seed` does not "
        "reach.",
        none="that of the algorithm, and chance where that has none",
    )
    auto_bind: bool = setting(
        True,
        Flag(),
        "Whether the extractor finds its algorithm by a look at the call stack, which it only "
        "reads. With False, pass `InfoNCECallback()` to `learn`; then all features carry the loss "
        "that are computed with gradients in training mode.",
    )
    observation_key: str | None = setting(
        None,
        Typed(str, "text"),
        "Entry of dictionaries of observations that is encoded, where the extractor is part of "
        "one of your own; `InfoNCECombinedExtractor` sets it.",
    )
    normalized_image: bool = setting(
        False, Flag(), "Whether images are floats already; SB3 sets it for normalize_images=False."
    )

    @property
    def of_loss(self) -> InfoNCESettings:
        """The settings of the loss alone."""
        return InfoNCESettings(**{name: getattr(self, name) for name in declared(InfoNCESettings)})


def extractor_arguments(
    given: Mapping[str, Any], *, vectors: bool = False, off_policy: bool = False
) -> ExtractorArguments:
    """Return arguments in which the preset has filled in the settings that were not given.

    Args:
        given: Arguments by name.
        vectors: Whether observations are vectors, whose preset is another one.
        off_policy: Whether an off-policy algorithm has the extractor, whose policy reads the
            features of vectors alone by default.

    Raises:
        TypeError: If there is no such argument, or one has the wrong type.
        ValueError: If one is out of range; the message names it.
    """
    _check_names(given)
    _check_used(given, vectors=vectors)
    of_loss = declared(InfoNCESettings)
    changes = {name: value for name, value in given.items() if name in of_loss}
    own = {name: value for name, value in given.items() if name not in of_loss}
    preset = given.get("preset") or usual_preset(vectors=vectors)
    encoder = own.get("encoder")
    settings = preset_settings(preset, changes)
    settings = replace(settings, **_usual_beside_custom_parts(given))
    decides = vectors and preset == usual_preset(vectors=True)
    settings = replace(settings, **_seen_by_policy(settings, decides, off_policy))
    if callable(encoder):
        check_fits_custom_encoder(settings, given)
    if settings.has_custom_objective:
        check_fits_custom_objective(settings, given)
    if vectors:
        check_fits_vectors(settings, preset, None if callable(encoder) else encoder)
    else:
        check_fits_images(settings, preset)
    arguments = ExtractorArguments(**(vars(settings) | own | {"preset": preset}))
    if arguments.infonce_interval > 1:
        _check_interval(arguments, off_policy=off_policy)
    if arguments.pairs_from == "auto" and (vectors or off_policy or not _is_like_cpc(arguments)):
        return replace(arguments, pairs_from="buffer")
    return arguments


def _check_interval(arguments: ExtractorArguments, *, off_policy: bool) -> None:
    """Raise a ValueError where updates of RL that have none of the loss cannot be counted."""
    if not arguments.auto_bind:
        raise ValueError(
            "Expected `infonce_interval` 1 with auto_bind=False, got "
            f"{arguments.infonce_interval}: passes with gradients that are no updates would count "
            "as some. Leave it out."
        )
    if arguments.isolated and not off_policy:
        raise ValueError(
            "Expected `infonce_interval` 1 with an isolated encoder of an on-policy algorithm, got "
            f"{arguments.infonce_interval}: `encoder_updates` says how many updates it has after a "
            "rollout. Leave it out."
        )


def _is_like_cpc(arguments: ExtractorArguments) -> bool:
    """Return whether RL's minibatch serves as in the runs that made it the default of "cpc"."""
    has_its_form = (
        arguments.objective == "infonce"
        and arguments.critic == "cosine"
        and arguments.rolls_forward_by == "none"
        and not arguments.uses_maps
    )
    # A bound has the minibatch encoded once more at every update.
    is_unbounded = arguments.max_grad_ratio is None
    return has_its_form and is_unbounded and unfit_for_minibatch(arguments) is None


def _check_names(given: Mapping[str, Any]) -> None:
    for name in given.keys() - declared(ExtractorArguments).keys():
        near = get_close_matches(name, declared(ExtractorArguments), n=1)
        hint = f"Did you mean `{near[0]}`?" if near else "help(InfoNCEExtractor) lists them."
        raise TypeError(f"InfoNCEExtractor has no argument `{name}`. {hint}")


def _check_used(given: Mapping[str, Any], *, vectors: bool) -> None:
    unused = "channels_last" if vectors else "with_observation"
    if given.get(unused) is not None:
        raise ValueError(
            f"Expected `{unused}` with {'images' if vectors else 'vectors'} alone, got "
            f"{given[unused]!r}. Leave it out."
        )


def _seen_by_policy(
    settings: InfoNCESettings, algorithm_decides: bool, off_policy: bool
) -> dict[str, Any]:
    """Return what the policy sees of a vector, where the settings do not say it.

    Both defaults are those of confirmations, by PPO and by SAC, and those of their relatives also:
    PPO gains by inputs that the loss has use for, beside their features, and SAC by the features
    alone.
    """
    decides = algorithm_decides and settings.isolated
    usual = {
        "select_inputs": decides and not off_policy,
        "with_observation": not (decides and off_policy),
    }
    return {name: value for name, value in usual.items() if getattr(settings, name) is None}


def _usual_beside_custom_parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that were not given, and which a user's own parts ask for."""
    usual: dict[str, Any] = {}
    if callable(given.get("encoder")):
        usual["input_sparsity"] = 0.0  # the lasso knows the weights of our own network alone
    if callable(given.get("objective")):
        # The test of inputs scores pairs of features, which need not be what the loss is about.
        usual |= {"action_conditioning": True, "select_inputs": False}
    return {name: value for name, value in usual.items() if given.get(name) is None}


def signature_of(
    arguments: Callable[_P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, spaces.Space[Any], _P], None]]:
    """Return a decorator of `__init__(self, space, ...)` that names the arguments.

    Editors, mypy and `help` then show the signature of `arguments` behind the observation space.
    """

    def decorate(
        init: Callable[..., None],
    ) -> Callable[Concatenate[Any, spaces.Space[Any], _P], None]:
        own = list(inspect.signature(init).parameters.values())[:2]
        listed = inspect.signature(arguments).parameters.values()
        init.__signature__ = inspect.Signature([*own, *listed])  # type: ignore[attr-defined]
        return init

    return decorate


def arguments_in_words() -> str:
    """Return a paragraph for each argument, with its range, its default and what it needs."""
    own, default = declared(ExtractorArguments), defaults(ExtractorArguments)
    paragraphs = []
    for name, each in own.items():
        others = other_presets(name)
        usual = f"default {default[name]!r}{'; ' if others else ''}{others}"
        facts = f"{words_in_python(each.kind)}; {usual}"
        needs = "" if each.needs is None else f" Needs {each.needs[0]}={each.needs[1]!r}."
        text = f"{name}: {each.sentences} ({facts.replace('`', '')}){needs}"
        paragraphs.append(fill(text, width=96, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(paragraphs)
