"""Argument checks, whose messages name the argument, what was expected and what came."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any, Protocol


class _HasShape(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


def check_shape(name: str, array: _HasShape, expected: Sequence[str | int]) -> None:
    """Raise unless `array` has the expected shape.

    Args:
        name: Name of the argument, as the caller wrote it.
        array: Anything with a `.shape`.
        expected: One entry per axis; a letter such as "B" allows any size, an int demands it, and
            a leading "..." allows any number of leading axes.

    Raises:
        ValueError: If the number of axes or a demanded size differs.
    """
    shape = tuple(array.shape)
    axes = list(expected)
    trailing = shape
    if axes and axes[0] == "...":
        axes = axes[1:]
        trailing = shape[max(len(shape) - len(axes), 0) :]
    fits = len(trailing) == len(axes) and all(
        isinstance(want, str) or want == size for want, size in zip(axes, trailing, strict=True)
    )
    if not fits:
        letters = ", ".join(str(axis) for axis in expected)
        raise ValueError(f"Expected `{name}` of shape [{letters}], got {shape}.")


def check_uint8(name: str, images: Any) -> None:
    """Raise unless images are uint8: of floats in 0..1 a 255th would be left after scaling.

    Args:
        name: Name of the argument, as the caller wrote it.
        images: An array or a tensor.

    Raises:
        TypeError: If the dtype is another.
    """
    dtype = str(images.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise TypeError(
            f"Expected `{name}` to be uint8 in 0..255, as the emulator draws them, got {dtype}."
        )


def check_number(
    name: str,
    value: float,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise unless `value` is a finite number inside the given range.

    Raises:
        TypeError: If `value` is not a real number.
        ValueError: If `value` is NaN, infinite or outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Expected `{name}` to be a number, got {value!r}.")
    is_finite = isinstance(value, Integral) or math.isfinite(value)
    if not (is_finite and at_least <= value <= at_most and above < value < below):
        wanted = f"a finite number {in_words(at_least, above, at_most, below)}".rstrip()
        raise ValueError(f"Expected `{name}` to be {wanted}, got {value!r}.")


def in_words(
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> str:
    """Return a range as in "> 0 and <= 1"; "" if it has no end."""
    ends = [(">=", at_least), (">", above), ("<=", at_most), ("<", below)]
    return " and ".join(f"{sign} {_shown(end)}" for sign, end in ends if math.isfinite(end))


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def check_count(name: str, value: int, *, at_least: float = 1, at_most: float = math.inf) -> None:
    """Raise unless `value` is an integer inside the given range.

    Raises:
        TypeError: If `value` is not an integer; 2.0 is not one.
        ValueError: If `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"Expected `{name}` to be an integer, got {value!r}.")
    check_number(name, int(value), at_least=at_least, at_most=at_most)


def check_generator(rng: Any) -> None:
    """Raise unless `rng` is a generator of numpy.

    Raises:
        TypeError: If it is none, as a seed is not.
    """
    import numpy as np  # here, so that `--help` does not wait for it

    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"Expected `rng` to be a numpy.random.Generator, got {rng!r}. "
            "Pass np.random.default_rng(seed)."
        )


def check_horizons(horizons: Iterable[int], *, allow_zero: bool = False) -> None:
    """Raise unless `horizons` holds one or more distinct gaps in agent steps.

    Args:
        horizons: The gaps, in any order.
        allow_zero: Whether a horizon of 0 (the anchor itself) is accepted.

    Raises:
        TypeError: If a horizon is not an integer.
        ValueError: If there is none, one is too small, or one appears twice.
    """
    if not isinstance(horizons, Iterable) or isinstance(horizons, str | bytes):
        raise TypeError(f"Expected `horizons` to hold integers, got {horizons!r}.")
    values = list(horizons)
    smallest = 0 if allow_zero else 1
    if not values:
        raise ValueError("Expected `horizons` to hold at least one integer, got none.")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"Expected `horizons` to hold integers, got {value!r}.")
        if int(value) < smallest:
            raise ValueError(f"Expected `horizons` to be at least {smallest}, got {value}.")
    if len(set(values)) != len(values):
        raise ValueError(f"Expected `horizons` without duplicates, got {values}.")


def check_flag(name: str, value: bool) -> None:
    """Raise unless `value` is True or False; the string "no" would count as True.

    Raises:
        TypeError: If `value` is anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"Expected `{name}` to be True or False, got {value!r}.")


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`; the message names the nearest one.

    Raises:
        ValueError: If `value` is not among the choices.
    """
    options = sorted(choices)
    if value in options:
        return
    hint = did_you_mean(value, options)
    raise ValueError(f"Expected `{name}` to be one of {options}, got {value!r}.{hint}")


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """Return a sentence that names the nearest of some choices, or "" if none is near."""
    near = get_close_matches(str(value), list(choices), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return in words which settings are found to differ from the wanted ones; "" if none does."""
    return "; ".join(
        f"{name}={found.get(name)!r} (not {value!r})"
        for name, value in wanted.items()
        if found.get(name) != value
    )


_MOST_LISTED = 5


def listed(found: Sequence[str]) -> str:
    """Return the first texts and the number of the others."""
    n_more = len(found) - _MOST_LISTED
    return "; ".join(found[:_MOST_LISTED]) + (f"; and {n_more} more" if n_more > 0 else "")


def import_extra(module: str, extra: str) -> Any:
    """Return a module that an extra of this library installs.

    Raises:
        ModuleNotFoundError: If it is not there; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Expected {module.partition('.')[0]}, which is not installed. Install it with "
            f'`pip install "rl-infonce[{extra}]"`.'
        ) from error


_NOT_OF_USERS = ("rl_infonce", "torch", "stable_baselines3", "sb3_contrib", "gymnasium")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest line that neither this package nor what it is built on has written."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame.f_globals) in _NOT_OF_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(names: Mapping[str, Any]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
