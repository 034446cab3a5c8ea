"""What must be installed for statistics."""

from __future__ import annotations

from typing import Any


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
