"""Probes that converge at once, for tests of what is done with their scores."""

from functools import partial

import pytest

from rl_infonce.probing import Converged


def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the converged protocol of this process have one strong penalty by default."""
    quick = partial(Converged, penalties=(1e-1,))
    monkeypatch.setattr("rl_infonce.probing.probe.Converged", quick)
