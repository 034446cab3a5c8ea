"""Check the tables of a grid: which settings they take, and all that is wrong with given ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_infonce.atari.labels import labelled_games, load_labels
from rl_infonce.checks import did_you_mean
from rl_infonce.device import named_device
from rl_infonce.kinds import TABLE, TEXT, Choice, Choices, Count, Counts, Kind, Number
from rl_infonce.presets import LOSS_SETTINGS, preset_settings, usual_preset
from rl_infonce.sb3.callbacks import decoupled_callback
from rl_infonce.scoring.defaults import LABELS, OTHER_PROTOCOLS, POLICIES, PROTOCOLS
from rl_infonce.scoring.frame_source import find_frames
from rl_infonce.settings import InfoNCESettings, declared
from rl_infonce.training.plan import OF_A_SESSION, TrainingPlan
from rl_infonce.training.rl_zoo import ALGORITHMS, USUAL_HYPERPARAMETERS

_OF_TRAINING = (
    "freeze_encoder",
    "pretrained",
    "normalize",
    "n_envs",
    "save_freq",
    "on_nan",
    "device",
)
SETTINGS: dict[str, Kind] = {
    **{name: each.kind for name, each in LOSS_SETTINGS.items()},
    **{name: declared(TrainingPlan)[name].kind for name in _OF_TRAINING},
    "hyperparameters": TABLE,
}
PROBE_SETTINGS: dict[str, Kind] = {
    "n_frames": Count(),
    "labels": TEXT,
    "protocol": Choices(PROTOCOLS + OTHER_PROTOCOLS),
    "policy": Choice(POLICIES),
    "data_seed": Count(0),
    "seeds": Counts(),
}


def table_problems(where: str, table: Any, known: Mapping[str, Kind]) -> Iterator[str]:
    """Yield the names of a table that are not known, and the values that are not legal alone."""
    if not isinstance(table, Mapping):
        yield f"Expected a table [{where}], got {table!r}."
        return
    of_algorithm = set(USUAL_HYPERPARAMETERS) - known.keys() if "hyperparameters" in known else ()
    for name in table.keys() & of_algorithm:
        yield f"Unknown setting in [{where}]: {name!r}. Did you mean `hyperparameters.{name}`?"
    others = {name: each for name, each in table.items() if name not in of_algorithm}
    yield from unknown(f"setting in [{where}]", others, known)
    for name, value in table.items():
        if name in known:
            yield from value_problems(f"{where}.{name}", known[name], value)


def value_problems(name: str, kind: Kind, value: Any) -> Iterator[str]:
    """Yield why a value is not legal, whatever the others are."""
    if not kind.fits(value):
        yield f"Expected `{name}` to be {kind.words}, got {value!r}."
        return
    try:
        kind.check(name, value)
    except (ValueError, TypeError) as error:
        yield str(error)


def without_session(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those, such as the device, that a run may change as it goes on."""
    return {name: value for name, value in settings.items() if name not in OF_A_SESSION}


def unknown(
    what: str, given: Mapping[str, Any], known: Mapping[str, Any] | set[str]
) -> Iterator[str]:
    """Yield the names that are not known, with the nearest that is."""
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" Known are {sorted(known)}."
            yield f"Unknown {what}: {name!r}.{hint}"


def complaints(where: str, check: Callable[..., object], *given: Any, **named: Any) -> list[str]:
    """Return the complaint of a check about its arguments, if there is one."""
    try:
        check(*given, **named)
    except (ValueError, TypeError) as error:
        return [f"{where}: {error}"]
    return []


def check_loss(settings: Mapping[str, Any]) -> None:
    """Raise as the extractor and the decoupled mode would for settings of the loss."""
    given = {name: settings[name] for name in settings if name in declared(InfoNCESettings)}
    _check_with_preset(settings.get("preset"), given)
    decoupled_callback(settings)


def _check_with_preset(preset: str | None, given: Mapping[str, Any]) -> None:
    """Raise unless settings fit their preset or, without one, that of images or of vectors.

    Which one it will be is known when the environment is made.
    """
    if preset is not None:
        preset_settings(preset, given)
        return
    try:
        preset_settings(usual_preset(vectors=False), given)
    except ValueError as error:
        try:
            preset_settings(usual_preset(vectors=True), given)
        except ValueError:
            raise error from None


def check_device(device: str) -> None:
    """Raise a ValueError unless there are such devices; another machine may have this one."""
    try:
        named_device("cpu" if device == "auto" else device)
    except RuntimeError as error:
        raise ValueError(
            f"Expected `device` to be auto, cpu, cuda or cuda:N, got {device!r}."
        ) from error


def train_problems(where: str, table: Any, *, check_files: bool = False) -> Iterator[str]:
    """Yield what is wrong with a table of settings of `rl-infonce train`, as it was given."""
    yield from table_problems(where, table, SETTINGS)
    if not isinstance(table, Mapping):
        return
    if isinstance(table.get("device"), str):
        yield from complaints(f"[{where}]", check_device, table["device"])
    pretrained = table.get("pretrained")
    if check_files and isinstance(pretrained, str) and not Path(pretrained).is_file():
        yield f"Expected `{where}.pretrained` to be a file, got {pretrained!r}: there is none."
    if isinstance(table.get("hyperparameters"), Mapping):
        yield from _hyperparameter_problems(f"{where}.hyperparameters", table["hyperparameters"])


def unused_problems(where: str, table: Any, algos: Sequence[str]) -> Iterator[str]:
    """Yield which hyperparameters are of algorithms that nothing trains."""
    given = table.get("hyperparameters") if isinstance(table, Mapping) else None
    if not isinstance(given, Mapping) or not algos:  # these are named already
        return
    for name in sorted((given.keys() & ALGORITHMS.keys()) - {*algos}):
        yield (
            f"Expected `{where}.hyperparameters` for `algos` {[*algos]} alone, got a table for "
            f"{name!r}. Add it to `algos`, or leave the table out."
        )


def _hyperparameter_problems(where: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield which values no command line can pass on; the names are checked by algorithm."""
    for name, value in given.items():
        if name not in ALGORITHMS:
            yield from _plain_problems(f"{where}.{name}", value)
        elif not isinstance(value, Mapping):
            yield f"Expected `{where}.{name}` to be a table for that algorithm, got {value!r}."
        else:
            for inner, each in value.items():
                yield from _plain_problems(f"{where}.{name}.{inner}", each)


def _plain_problems(where: str, value: Any) -> Iterator[str]:
    """Yield why a value is no hyperparameter: neither plain nor, as [1, "episode"], a list."""
    if not all(map(_is_plain, value if isinstance(value, list) else [value])):
        yield (
            f"Expected `{where}` to be a finite number, text, true, false or a list of these, got "
            f"{value!r}. Tables are for the algorithms {', '.join(sorted(ALGORITHMS))}."
        )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or Number().fits(value)


def probe_problems(
    probe: Mapping[str, Any], games: Sequence[str], envs: Sequence[str]
) -> Iterator[str]:
    """Yield why `rl-infonce probe` would refuse games, or settings that are legal alone."""
    if envs:
        yield (
            "Expected [probe] with `games` alone, as labels are read from the RAM of Atari games, "
            f"got `envs` {', '.join(envs)}. Give them a grid of their own."
        )
    if "ridge" in probe.get("protocol", ()):
        yield (
            "Expected `probe.protocol` other than 'ridge', whose errors in pixels have no place in "
            "a report, got it. Run `rl-infonce probe --game GAME --features-of CELL --protocol "
            "ridge` on the folders of the cells."
        )
    frames = {"n_frames": probe.get("n_frames"), "seed": probe.get("data_seed"), "policy": None}
    yield from complaints("[probe]", find_frames, (), None, "agent", **frames)
    labels = probe.get("labels", LABELS)
    no_labels = complaints("[probe]", labelled_games, labels)
    yield from no_labels
    for game in () if no_labels else games:
        yield from complaints("[probe]", load_labels, game, labels)


def unprobed_problems(
    train: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield why `rl-infonce probe` would refuse the models of some arms."""
    isolated = [name for name, own in arms.items() if {**train, **own}.get("isolated")]
    if isolated:
        yield (
            f"Expected [probe] beside arms without `isolated = true`, got {', '.join(isolated)}: "
            "the policy reads an average of such an encoder, which a probe cannot rebuild from a "
            "file. Give them a grid without [probe]."
        )
