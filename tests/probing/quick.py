"""Probes that converge at once, for tests of what is done with their scores."""

from dataclasses import dataclass

import pytest

from rl_infonce.probing import Converged


@dataclass(frozen=True)
class _Quick(Converged):
    penalties: tuple[float, ...] = (1e-1,)


def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the converged protocol of this process have one strong penalty by default."""
    monkeypatch.setattr("rl_infonce.probing.probe.Converged", _Quick)
