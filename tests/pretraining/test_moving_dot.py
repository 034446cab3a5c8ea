"""Who finds the dot? Time tells it from noise; the committed run has all objectives."""

import pytest

from tests.experiments.loading import load
from tests.further import further

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arm", "least", "most"), [further("stdim", 0.8, 1.0), ("untrained", 0.0, 0.6)]
)
def test_stdim_finds_the_dot_and_an_untrained_encoder_does_not(
    monkeypatch: pytest.MonkeyPatch, arm: str, least: float, most: float
) -> None:
    script = load("moving_dot.py")
    for name, value in (("SIDE", 60), ("N_CELLS", 10), ("CELL", 6)):
        monkeypatch.setattr(script, name, value)
    assert least <= script.measure(arm, 0, 200)["f1_weighted"] <= most
