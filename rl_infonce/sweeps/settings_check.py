"""The tables of a grid: which settings they take, and everything that is wrong with those given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from rl_infonce.atari.labels import labelled_games, load_labels
from rl_infonce.checks import check_choice
from rl_infonce.sb3.callbacks import decoupled_callback
from rl_infonce.scoring.defaults import LABELS, OTHER_PROTOCOLS, POLICIES, PROTOCOLS
from rl_infonce.scoring.frame_source import find_frames
from rl_infonce.settings import InfoNCESettings, preset_settings
from rl_infonce.training.atari_model import ALGORITHMS

Check = Callable[[Any], bool]


def is_int(value: Any) -> bool:
    """Return whether it is an int of at least 1."""
    return type(value) is int and value >= 1


def is_number(value: Any) -> bool:
    """Return whether it is an int or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Return whether it is text."""
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    """Return whether it is true or false."""
    return isinstance(value, bool)


def is_ints(value: Any) -> bool:
    """Return whether it is a list of ints."""
    return isinstance(value, list) and all(type(each) is int for each in value)


def is_table(value: Any) -> bool:
    """Return whether it is a table."""
    return isinstance(value, Mapping)


def _is_positive(value: Any) -> bool:
    return is_number(value) and 0 < value < math.inf


def is_natural(value: Any) -> bool:
    """Return whether it is an int of at least 0."""
    return type(value) is int and value >= 0


def _is_seeds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_natural, value))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_text, value))


SETTINGS: dict[str, tuple[Check, str]] = {
    "infonce_coef": (is_number, "a number"),
    "horizons": (is_ints, "a list of ints"),
    "preset": (is_text, "text"),
    "precision": (is_text, "text"),
    "n_pairs": (is_int, "an int >= 1"),
    "critic": (is_text, "text"),
    "temperature": (_is_positive, "a finite number > 0"),
    "learn_temperature": (is_flag, "true or false"),
    "terms": (_is_texts, "a list of at least one name"),
    "centred": (is_flag, "true or false"),
    "context": (is_text, "text"),
    "context_length": (is_int, "an int >= 1"),
    "action_conditioning": (is_flag, "true or false"),
    "augmentation": (is_text, "text"),
    "target_encoder_tau": (_is_positive, "a finite number > 0"),
    "positives": (is_text, "text"),
    "min_gap": (is_natural, "an int >= 0"),
    "max_grad_ratio": (_is_positive, "a finite number > 0"),
    "augment_observations": (is_flag, "true or false"),
    "decoupled": (is_flag, "true or false"),
    "decoupled_learning_rate": (_is_positive, "a finite number > 0"),
    "freeze_encoder": (is_flag, "true or false"),
    "pretrained": (is_text, "a path"),
    "hyperparameters": (is_table, "a table"),
    "n_envs": (is_int, "an int >= 1"),
    "save_freq": (is_int, "an int >= 1"),
    "on_nan": (is_text, "text"),
    "device": (is_text, "text"),
}
_CHOICES = {"precision": ("fp32", "bf16"), "on_nan": ("stop", "skip")}
_OF_THE_LOSS = {"preset", *(each.name for each in fields(InfoNCESettings))}
PROBE_SETTINGS: dict[str, tuple[Check, str]] = {
    "n_frames": (is_int, "an int >= 1"),
    "labels": (is_text, "text"),
    "protocol": (_is_texts, "a list of at least one name"),
    "policy": (is_text, "text"),
    "data_seed": (is_natural, "an int >= 0"),
    "seeds": (_is_seeds, "a list of at least one int >= 0"),
}


def table_problems(where: str, table: Any, known: Mapping[str, tuple[Check, str]]) -> Iterator[str]:
    """Yield which names of a table are not known, and which values are of another kind."""
    if not isinstance(table, Mapping):
        yield f"Expected a table [{where}], got {table!r}."
        return
    yield from unknown(f"setting in [{where}]", table, known)
    for name, value in table.items():
        if name in known and not known[name][0](value):
            yield f"Expected `{where}.{name}` to be {known[name][1]}, got {value!r}."


def legal(table: Any, known: Mapping[str, tuple[Check, str]]) -> dict[str, Any]:
    """Return the entries of a table that `table_problems` has nothing against."""
    given = table if isinstance(table, Mapping) else {}
    return {name: given[name] for name in given if name in known and known[name][0](given[name])}


def legal_settings(table: Any) -> dict[str, Any]:
    """Return the entries of a table of `rl-infonce train` that may be looked at together."""
    settings = legal(table, SETTINGS)
    given = settings.pop("hyperparameters", {})
    sound = {
        name: given[name]
        for name in given
        if not [*_hyperparameter_problems("", {name: given[name]})]
    }
    return settings | ({"hyperparameters": sound} if sound else {})


def unknown(
    what: str, given: Mapping[str, Any], known: Mapping[str, Any] | set[str]
) -> Iterator[str]:
    """Yield which names are not known, with the nearest that is."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {sorted(known)}."
            yield f"Unknown {what}: {name!r}. {hint}"


def said(where: str, check: Callable[..., object], *given: Any, **named: Any) -> list[str]:
    """Return what a check of the library says against its arguments, if anything."""
    try:
        check(*given, **named)
    except (ValueError, TypeError) as error:
        return [f"{where}: {error}"]
    return []


def check_loss(settings: Mapping[str, Any]) -> None:
    """Raise as the extractor and the decoupled mode do, if they would, for settings of the loss.

    Raises:
        ValueError: If a value is out of range, stands where nothing uses it, or names no preset.
        TypeError: If it has the wrong type.
    """
    given = {name: settings[name] for name in settings if name in _OF_THE_LOSS}
    preset_settings(given.pop("preset", "cpc"), given)
    decoupled_callback(
        settings.get("decoupled"),
        settings.get("decoupled_learning_rate"),
        max_grad_ratio=settings.get("max_grad_ratio"),
    )


def check_device(device: str) -> None:
    """Raise a ValueError unless torch knows such devices; another machine may have this one."""
    try:
        torch.device("cpu" if device == "auto" else device)
    except RuntimeError as error:
        raise ValueError(
            f"Expected `device` to be auto, cpu, cuda or cuda:N, got {device!r}."
        ) from error


def train_problems(where: str, table: Any, *, check_files: bool = False) -> Iterator[str]:
    """Yield what is wrong with settings of `rl-infonce train`.

    Args:
        where: Name of the table.
        table: As it was given.
        check_files: Whether files that are named must be there.
    """
    yield from table_problems(where, table, SETTINGS)
    if not isinstance(table, Mapping):
        return
    for name, choices in _CHOICES.items():
        if is_text(table.get(name)):
            yield from said(f"[{where}]", check_choice, name, table[name], choices)
    if is_text(table.get("device")):
        yield from said(f"[{where}]", check_device, table["device"])
    pretrained = table.get("pretrained")
    if check_files and isinstance(pretrained, str) and not Path(pretrained).is_file():
        yield f"Expected `{where}.pretrained` to be a file, got {pretrained!r}: there is none."
    if isinstance(table.get("hyperparameters"), Mapping):
        yield from _hyperparameter_problems(f"{where}.hyperparameters", table["hyperparameters"])


def _hyperparameter_problems(where: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield which values no command line can pass on; the names are checked by algorithm."""
    for name, value in given.items():
        if name not in ALGORITHMS:
            yield from _value_problems(f"{where}.{name}", value)
        elif not isinstance(value, Mapping):
            yield f"Expected `{where}.{name}` to be a table of that algorithm's, got {value!r}."
        else:
            for inner, each in value.items():
                yield from _value_problems(f"{where}.{name}.{inner}", each)


def _value_problems(where: str, value: Any) -> Iterator[str]:
    if not (is_text(value) or is_flag(value) or (is_number(value) and math.isfinite(value))):
        yield (
            f"Expected `{where}` to be a finite number, text, true or false, got {value!r}. "
            f"Tables are for the algorithms {', '.join(sorted(ALGORITHMS))}."
        )


def probe_problems(probe: Any, games: Sequence[str]) -> list[str]:
    """Return what `rl-infonce probe` would refuse of settings on games."""
    problems = list(table_problems("probe", probe, PROBE_SETTINGS))
    probe = legal(probe, PROBE_SETTINGS)
    for protocol in probe.get("protocol", ()):
        problems += said("[probe]", check_choice, "protocol", protocol, PROTOCOLS + OTHER_PROTOCOLS)
    if "policy" in probe:
        problems += said("[probe]", check_choice, "policy", probe["policy"], POLICIES)
    problems += said(
        "[probe]",
        find_frames,
        (),
        None,
        "agent",
        n_steps=probe.get("n_frames"),
        policy=None,
        seed=probe.get("data_seed"),
    )
    labels = probe.get("labels", LABELS)
    no_labels = said("[probe]", labelled_games, labels)
    for game in () if no_labels else games:
        problems += said("[probe]", load_labels, game, labels)
    return problems + no_labels
