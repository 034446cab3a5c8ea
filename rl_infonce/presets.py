"""Presets of the loss, from the literature, and which settings go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rl_infonce.checks import check_choice
from rl_infonce.kinds import Choice, Choices, words_in_python
from rl_infonce.settings import (
    DecoupledSettings,
    InfoNCESettings,
    Setting,
    declared,
    defaults,
)

PRESETS: Mapping[str, InfoNCESettings] = {
    # van den Oord et al. 2018, section 3.4, without the recurrent context (context="gru" adds it);
    # the cosine of projections over 0.1 in place of their bilinear form (critic="bilinear").
    "cpc": InfoNCESettings(),
    # The spatial terms of Anand et al. 2019 in CPC's direction: bilinear, no temperature. Unlike
    # `pretraining.SpatioTemporalDIM`, which keeps to the published code, both sides pass a layer
    # norm, scores are divided by the root of the map's channels and have no bias, the batch is
    # centred, near and equal candidates are masked, and now predicts then, not before.
    "spatial_cpc": InfoNCESettings(terms=("global_local", "local_local"), critic="bilinear"),
    # Ours: the same, but features must say what stands where.
    "positional_cpc": InfoNCESettings(terms=("positional", "local_local"), critic="bilinear"),
    # Guo et al. 2018 (CPC|A) one step ahead, of vectors: what will this action make of this state?
    # Without their recurrent belief; among all negatives of a batch, where theirs is binary.
    "action_cpc": InfoNCESettings(
        action_conditioning=True,
        n_pairs=256,
        min_gap=1,
        isolated=True,
        policy_encoder_tau=0.01,
        input_sparsity=0.03,
    ),
    # Stooke et al. 2021: random shift, slowly moving target, bilinear; without their projection
    # and residual predictor. A layer norm and a centred batch are ours, as in "curl".
    "atc": InfoNCESettings(critic="bilinear", augmentation="random_shift", target_encoder_tau=0.01),
    # Laskin, Srinivas & Abbeel 2020 (CURL): two views of one observation, moving target; shifts of
    # DrQ (Kostrikov et al. 2020) in place of crops, and a target that moves by 0.01, not 0.05.
    "curl": InfoNCESettings(
        critic="bilinear", horizons=(0,), augmentation="random_shift", target_encoder_tau=0.01
    ),
}
PRESET = Setting(
    Choice(tuple(PRESETS)),
    "Which loss, from the literature, the settings begin with.",
    none="cpc for images and action_cpc for vectors",
)

ENCODER_NAMES = ("nature", "impala")
ENCODER = Setting(
    Choice(ENCODER_NAMES),
    "Architecture of the encoder.",
    none="nature for images, and a small MLP for vectors",
)

LOSS_SETTINGS: Mapping[str, Setting] = {
    "preset": PRESET,
    "encoder": ENCODER,
    **declared(InfoNCESettings),
    **declared(DecoupledSettings),
}
"""All that a training may say about its loss, as flags and in grids."""


def usual_preset(*, vectors: bool) -> str:
    """Return the preset of images, or that of vectors."""
    return "action_cpc" if vectors else "cpc"


_OFF_FOR_IMAGES = {"input_sparsity": 0.0, "select_inputs": False}
PRESETS_OF_IMAGES = tuple(
    name for name, each in PRESETS.items() if each.uses_maps or each.augmentation != "none"
)
"""Presets that vectors do not take."""


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
            fit = [each for each in PRESETS if each not in PRESETS_OF_IMAGES]
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
    of_vectors = [name for name in _OFF_FOR_IMAGES if getattr(settings, name)]
    if of_vectors:
        name = of_vectors[0]
        given = getattr(settings, name)
        is_of_preset = getattr(PRESETS[preset], name) == given
        source = f" of preset={preset!r}" if is_of_preset else ""
        off = ", ".join(f"{each}={_OFF_FOR_IMAGES[each]}" for each in of_vectors)
        way_out = f"Leave the preset out, or add {off}." if is_of_preset else "Leave it out."
        raise ValueError(
            f"Expected `{name}` to fit images, got {given}{source}, which takes out dimensions of "
            f"vectors. {way_out}"
        )


def check_fits_custom_encoder(settings: InfoNCESettings, given: Mapping[str, Any]) -> None:
    """Raise a ValueError if arguments shape an encoder that is the user's own.

    Args:
        settings: Those of the loss.
        given: All arguments that were given, by name.
    """
    usual = defaults(InfoNCESettings)
    shaping = {
        "terms": settings.terms if settings.uses_maps else None,
        "features_dim": given.get("features_dim"),
        "input_sparsity": settings.input_sparsity or None,
        "channels_last": given.get("channels_last"),
        **{name: own for name, own in settings.of_encoder.items() if own != usual[name]},
    }
    _refuse_first(shaping, "the encoders of rl_infonce", f"encoder={given['encoder']!r}")


def check_fits_custom_objective(settings: InfoNCESettings, given: Mapping[str, Any]) -> None:
    """Raise a ValueError if settings shape a loss that is the user's own.

    Args:
        settings: Those of the loss.
        given: All arguments that were given, by name.
    """
    unfit = {
        "terms": settings.terms if settings.uses_maps else None,
        "predictor": settings.predictor,
        "select_inputs": settings.select_inputs or None,
    }
    _refuse_first(unfit, "the objectives of rl_infonce", f"objective={settings.objective!r}")


def _refuse_first(unfit: Mapping[str, Any], fitting: str, custom: str) -> None:
    """Raise a ValueError about the first setting that is not None, if there is one."""
    for name, given in unfit.items():
        if given is not None:
            raise ValueError(
                f"Expected `{name}` with {fitting} alone, got {given!r} with {custom}, which does "
                "not take it. Leave it out"
                f"{', with the preset that has it' if name == 'terms' else ''}."
            )


def preset_settings(preset: str, changes: Mapping[str, Any]) -> InfoNCESettings:
    """Return the settings of a preset with the given changes; a change to None keeps the preset's.

    Args:
        preset: A key of `PRESETS`.
        changes: Field name to new setting.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If the preset or a setting is not legal; the message names the argument.
    """
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
        if needs is not None and getattr(settings, needs[0]) == needs[1]:
            needs = declared(settings)[needs[0]].needs  # as a temperature needs a critic
        if needs is not None and getattr(settings, needs[0]) != needs[1]:
            other, value = needs
            raise ValueError(
                f"Expected `{name}` with {other}={value!r} alone, got it with "
                f"{other}={getattr(settings, other)!r}, which does not use it. Leave it out, or "
                f"add {other}={value!r}."
            )
    _check_predictor(settings)
    predicting = {
        "context": settings.context != "none",
        "action_conditioning": settings.action_conditioning,
        "predictor": settings.rolls_forward_by != "none",
    }
    unused = [name for name in predicting if name in given and predicting[name]]
    if unused and settings.terms == ("local_local",):
        raise ValueError(
            f"Expected `{unused[0]}`={given[unused[0]]!r} with a term that predicts from features, "
            "got terms=('local_local',), which does not use it. Leave it out."
        )


def _check_predictor(settings: InfoNCESettings) -> None:
    """Raise if nothing predicts, or places are to be predicted without negatives."""
    if settings.has_custom_objective:
        return
    predicts = settings.objective == "self_prediction"
    if settings.rolls_forward_by == "none" and (predicts or settings.action_conditioning):
        needing = "objective='self_prediction'" if predicts else "action_conditioning=True"
        raise ValueError(
            f"Expected `predictor` to be gru or mlp with {needing}, got 'none', which looks at no "
            "action and changes no feature. Leave it out."
        )
    if settings.rolls_forward_by != "none" and settings.horizons == (0,):
        raise ValueError(
            f"Expected `horizons` above 0 where features are rolled forward (predictor="
            f"{settings.rolls_forward_by!r}), got (0,), between two views of one image. Add "
            "horizons=(4,), or leave out what predicts."
        )
    if predicts and settings.terms != ("global",):
        raise ValueError(
            "Expected `terms`=('global',) with objective='self_prediction', which predicts "
            f"features, got {settings.terms}. Leave it out."
        )


def _as_tuple(given: Any) -> tuple[Any, ...]:
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if is_one else tuple(given)


def settings_table(settings: Any) -> str:
    """Return a Markdown table of the settings that a dataclass declares, with their defaults."""
    rows = ["| setting | default | other presets | meaning |", "|---|---|---|---|"]
    own = defaults(settings)
    for name, each in declared(settings).items():
        kind = f" ({words_in_python(each.kind)})" if isinstance(each.kind, Choice | Choices) else ""
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
