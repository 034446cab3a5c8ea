"""Mark cases as further ones of what others show, which `pytest --thorough` runs also."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def further(*values: Any) -> Any:
    """Return the values of one case, for `pytest.mark.parametrize`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def with_further(names: Iterable[str], which: Container[str]) -> list[Any]:
    """Return names as cases, of which some are further ones."""
    return [further(name) if name in which else name for name in names]
