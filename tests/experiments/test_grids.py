"""Every committed grid has arms that can be trained."""

from pathlib import Path

import pytest
from regime_grids import read_grid as read_regime
from regime_training import OF_THE_ARM

from rl_infonce.sb3.arguments import extractor_arguments
from rl_infonce.sweeps.grid import read_grid
from tests.experiments.loading import EXPERIMENTS

# Those of frozen_ppo.py have no arms.
SWEEPS = sorted(path for path in EXPERIMENTS.glob("*.toml") if not path.stem.startswith("frozen_"))
# These have settings that there are no more.
FORMER = {
    "ppo_schedule_screen",
    "ppo_segments_screen",
    "ppo_sparse_screen",
    "ppo_updates_screen",
    "sac_sparse_screen",
}
REGIMES = sorted(
    path for path in (EXPERIMENTS / "regimes").glob("*.toml") if path.stem not in FORMER
)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_has_legal_arms(path: Path) -> None:
    assert read_grid(path).cells()


@pytest.mark.parametrize("path", REGIMES, ids=lambda path: path.stem)
def test_a_regime_has_legal_arms(path: Path) -> None:
    grid = read_regime(path)
    for arm in grid.arms.values():
        if arm.get("extractor", True):
            host = {
                "vectors": grid.policy == "MlpPolicy",
                "off_policy": grid.algorithm in ("SAC", "TD3"),
            }
            own = {name: arm[name] for name in arm.keys() - OF_THE_ARM}
            given = vars(extractor_arguments(own, **host))
            told = {name: tuple(v) if isinstance(v, list) else v for name, v in own.items()}
            assert told.items() <= given.items()


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_grid_without_runs_is_named_on_a_page(path: Path) -> None:
    if not (EXPERIMENTS / "results" / path.stem).is_dir():
        pages = [*EXPERIMENTS.rglob("*.md"), *(EXPERIMENTS.parent / "rl_infonce").rglob("*.md")]
        assert any(path.name in page.read_text(encoding="utf-8") for page in pages), (
            f"Link {path.name} on the page of the study that it goes on with, and say what it asks."
        )
