"""Dead features and their spread: the arithmetic, and one trained cell."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rl_infonce.cli import main as rl_infonce
from tests.experiments.loading import load
from tests.probing.quick import quick_probes
from tests.sweeps.finished_cells import finished
from tests.sweeps.grids import begun_sweep, write_grid

script = load("live_features.py")


def test_measures_are_those_of_the_features() -> None:
    features = np.array([[0, 0, 3, 0], [0, 2, 3, 0], [0, 4, 3, 4]], np.float32)
    found = script.measures(features)
    assert found["dead_share"] == 1 / 4
    assert found["std"] == pytest.approx((0 + np.sqrt(8 / 3) + 0 + np.sqrt(32 / 9)) / 4)
    assert found["norm"] == pytest.approx((3 + np.sqrt(13) + np.sqrt(41)) / 3)


def test_as_wide_is_drawn_from_the_features_that_vary() -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    features[:, 2] = 7
    assert script.live(features).tolist() == [0, 1, 3]
    drawn = {
        tuple(script.as_wide(features, 2, np.random.default_rng(seed))[0].astype(int))
        for seed in range(30)
    }
    assert drawn == {(0, 1), (0, 3), (1, 3)}
    every = script.as_wide(features, 9, np.random.default_rng(0))
    np.testing.assert_array_equal(every, features[:, [0, 1, 3]])


def test_widths_are_compared_by_game_and_seed() -> None:
    found = [
        {
            **{"game": game, "seed": seed, "arm": "infonce", "n_live_untrained": 30, "n_live": 20},
            **{"untrained": 0.5 + 0.1 * seed, "as_wide": 0.45 + 0.1 * seed, "trained": 0.4},
        }
        for game in ("a", "b")
        for seed in (0, 1)
    ]
    row = script.width_table(found).splitlines()[2].split(" | ")
    assert row[:6] == ["| infonce", "30", "20", "0.400", "0.550", "0.500"]
    assert row[6].startswith("-0.1500 (")
    assert row[7].startswith("-0.0500 (")
    assert row[8].startswith("-0.1000 (")
    assert row[9] == "4 |"


def test_cells_that_are_not_trained_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = SimpleNamespace(observations=np.zeros((3, 1)))
    frames = SimpleNamespace(labelled=lambda _: labelled)
    monkeypatch.setattr(script, "cached_frames", lambda *_, **__: frames)
    for name in ("make_task", "untrained"):
        monkeypatch.setattr(script, name, lambda *_, **__: None)
    monkeypatch.setattr(script, "read_encoder", Path.read_bytes)
    features = np.array([[0, 1], [0, 2], [0, 3]], np.float32)
    monkeypatch.setattr(script, "extract_features", lambda *_: features)
    monkeypatch.setattr(script, "f1", lambda *_: 0.5)
    sweep = begun_sweep(tmp_path / "sweep", seeds=[0, 1])
    (finished(sweep, 0) / "model.zip").touch()
    sweep.run_dir(sweep.grid().cells()[1]).mkdir()
    (cell,) = script.probed(sweep)
    assert (cell["seed"], cell["arm"], cell["n_live"]) == (0, "baseline", 1)


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
@pytest.mark.thorough
def test_a_cell_is_measured_beside_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick_probes(monkeypatch)
    probe = {"n_frames": 500, "protocol": ["converged"]}
    grid = write_grid(tmp_path / "grid.toml", arms=["baseline"], probe=probe, n_timesteps=64)
    sweep = tmp_path / "sweep"
    assert rl_infonce(["sweep", str(grid), "-o", str(sweep)]) == 0
    capsys.readouterr()
    flags = [str(sweep), "--output", str(tmp_path), "--n-states", "64"]
    monkeypatch.setattr(sys, "argv", ["live_features.py", *flags])
    script.main()
    untrained, trained = json.loads((tmp_path / "live_features.json").read_text())["cells"]
    assert (untrained["arm"], trained["arm"]) == ("untrained", "baseline")
    # the learning rate of a single rollout is 0, so that this is the network it began with
    assert all(trained[name] == pytest.approx(untrained[name], rel=1e-5) for name in script.COLUMNS)
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].startswith(f"| breakout | untrained | {untrained['dead_share']:.3f} | ")
    monkeypatch.setattr(sys, "argv", ["live_features.py", *flags, "--probe"])
    script.main()
    (cell,) = json.loads((tmp_path / "feature_width.json").read_text())["cells"]
    assert cell["n_live"] == cell["n_live_untrained"]
    assert cell["trained"] == cell["untrained"] == pytest.approx(cell["as_wide"], abs=0.02)
