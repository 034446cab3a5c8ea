"""Checks of arguments and of what is installed that only this room needs."""

from __future__ import annotations

from typing import Any

from rl_infonce.checks import check_number

__all__ = ["check_share", "scipy_stats"]


def check_share(name: str, value: float) -> None:
    """Raise unless `value` lies strictly between 0 and 1.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is out of range.
    """
    check_number(name, value, above=0)
    if value >= 1:
        raise ValueError(f"Expected `{name}` below 1, got {value}.")


def scipy_stats() -> Any:
    """Return `scipy.stats`.

    Raises:
        ImportError: If SciPy is missing.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError(
            'Statistics need SciPy. Install it with `pip install "rl-infonce[report]"`.'
        ) from error
    return stats
