"""Forms of encoders: every stage on little data, what is measured, and the tables' arithmetic."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.cli import main as rl_infonce
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sweeps.grid import read_grid
from tests.draws import seeded
from tests.experiments.loading import load
from tests.probing.quick import quick_probes
from tests.sweeps.finished_cells import finished
from tests.sweeps.grids import begun_sweep, write_grid

script = load("alive_encoders.py")

CONFIRMATION = script.GRID.with_name("alive_confirmation.toml")
FORM = {"activation": "elu", "feature_activation": "simplicial"}


def test_the_arms_of_the_grid_are_forms_of_the_same_network() -> None:
    grid = read_grid(script.GRID)
    forms = {cell.arm: EncoderForm(**script.form_of(cell)) for cell in grid.cells()}
    assert forms["baseline"] == EncoderForm()
    assert len(set(forms.values())) == len(grid.arms) == 8
    for cell in grid.cells():
        assert cell.settings == {"infonce_coef": 0.0, **script.form_of(cell)}


def test_dead_features_and_dead_channels_are_counted() -> None:
    encoder: Any = PixelEncoder((4, 84, 84), 32, generator=seeded())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 4, 84, 84), dtype=np.uint8)
    before = script.measures(encoder, images)
    assert before["dead_share"] < 0.3
    assert before["dead_channels"] < 0.3
    with torch.no_grad():
        encoder.linear[0].bias[:16] -= 1e3
        encoder.cnn[4].bias[:48] -= 1e3
    after = script.measures(encoder, images)
    assert after["dead_share"] >= 16 / 32
    assert 48 / 64 <= after["dead_channels"] < 1
    assert 1 < after["effective_rank"] <= 16


def cell(kind: str, arm: str, game: str, seed: int, dead: float, f1: float) -> dict[str, Any]:
    """Return the record of a cell whose untrained features are dead by 0.25 and know 0.5."""
    return {
        **{"game": game, "arm": arm, "seed": seed},
        "measures": {
            "untrained": {"dead_share": 0.25, "dead_channels": 0.0, "effective_rank": 100.0},
            "trained": {"dead_share": dead, "dead_channels": 0.125, "effective_rank": 40.0},
        },
        "f1": {"converged": {"untrained": 0.5, "trained": f1}},
        **({"area": 8.0 + seed} if kind == "agents" else {}),
    }


def test_tables_are_means_over_games_and_seeds(tmp_path: Path) -> None:
    grid = read_grid(script.GRID)
    for kind in script.KINDS:
        (tmp_path / kind).mkdir()
    assert script.table(tmp_path, grid) == ""
    for index, game in enumerate(("boxing", "demon_attack")):
        for seed in (100, 101):
            f1 = 0.6 + 0.2 * index + 0.02 * (seed - 100)
            for kind in script.KINDS:
                for arm, more in (("baseline", 0.0), ("elu", 0.125 + 0.01 * (seed - 100))):
                    found = cell(kind, arm, game, seed, 0.5 - 4 * more, f1 + more)
                    path = tmp_path / kind / f"{game}-ppo-{arm}-{seed}.json"
                    path.write_text(json.dumps(found))
    blocks = script.table(tmp_path, grid).split("\n\n")
    forms, of_untrained, against_baseline, returns, *of_pretrained = blocks
    means = "| 0.25 | 0.50 | 0.00 | 0.12 | 100 | 40 | 0.500 | 0.710 | 4 |"
    assert f"| baseline {means}" in forms
    assert "| elu | 0.25 | -0.02 | 0.00 | 0.12 | 100 | 40 | 0.500 | 0.840 | 4 |" in forms
    # by hand: pairs gain 0.1, 0.12, 0.3 and 0.32, in the mean of both games 0.21
    assert "| baseline | higher | +0.21" in of_untrained
    assert "| elu | higher | +0.13" in against_baseline
    assert "| baseline |" not in against_baseline.split("\n", 2)[2]
    assert "mean return over the budget" in returns
    assert len(of_pretrained) == 3
    assert of_pretrained[0].startswith("| ST-DIM | dead features, untrained |")


def test_the_form_to_confirm_knows_most_of_those_that_stay_alive(tmp_path: Path) -> None:
    grid = read_grid(script.GRID)
    (tmp_path / "pretrained").mkdir()
    for each in grid.cells():
        # the deadest knows most; of those with fewer than 5 % dead, the fourth does
        index = grid.arms.index(each.arm)
        dead, f1 = (0.06, 0.9) if index == 0 else (0.04, 0.5 + 0.05 * min(index, 6 - index))
        found = cell("pretrained", each.arm, each.game, each.seed, dead, f1)
        path = tmp_path / "pretrained" / f"{each.name}.json"
        path.write_text(json.dumps(found))
    assert script.chosen(tmp_path, grid) == grid.arms[3]
    path.unlink()
    with pytest.raises(ValueError, match=f"missed {path.stem}"):
        script.chosen(tmp_path, grid)


def test_a_confirmation_trains_what_its_command_names() -> None:
    grid = read_grid(CONFIRMATION)
    tuned = read_grid(script.GRID)
    forms = [{cell.arm: script.form_of(cell) for cell in each.cells()} for each in (grid, tuned)]
    assert forms[0] == forms[1]
    assert not {*grid.games} & {*tuned.games}
    assert not {*grid.seeds} & {*tuned.seeds}
    assert len(script.cells_of(grid, None)) == 240
    cells = script.cells_of(grid, ["elu", "baseline"])
    assert [each.seed for each in cells] == [seed for seed in range(5) for _ in range(12)]
    assert {each.arm for each in cells} == {"elu", "baseline"}
    with pytest.raises(ValueError, match=r"Expected --arms among baseline, elu.*got relu"):
        script.cells_of(grid, ["relu"])


def test_the_page_shows_the_tables_of_the_files_beside_it() -> None:
    results = script.GRID.parent / "results"
    page = (results / "alive_encoders" / "README.md").read_text()
    tuned, fresh = read_grid(script.GRID), read_grid(CONFIRMATION)
    of_tuned = script.table(results / "alive_encoders", tuned).split("\n\n")[0]
    assert of_tuned.startswith("| ST-DIM |")
    assert of_tuned in page
    assert script.table(results / "alive_confirmation", fresh) in page
    chosen = script.chosen(results / "alive_encoders", tuned)
    confirmed = script.records(results / "alive_confirmation", "pretrained")
    assert {each["arm"] for each in confirmed} == {"baseline", chosen}


def test_an_agent_whose_features_are_still_to_be_probed_gets_no_file_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents").mkdir()
    folder = begun_sweep(tmp_path / "sweep", probe={"n_frames": 10, "protocol": ["converged"]})
    probed, unprobed = finished(folder, 0), finished(folder, 1)
    (unprobed / "probe" / "scores.json").unlink()
    monkeypatch.setattr(script, "read_encoder", lambda path: path.parent.name)
    monkeypatch.setattr(script, "record", lambda _cell, _grid, encoder, **_: encoder)
    script.agents(tmp_path, tmp_path)
    assert [path.stem for path in (tmp_path / "agents").glob("*.json")] == [probed.name]
    assert f"Missing: {unprobed.name} (trained" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
@pytest.mark.thorough
def test_forms_are_trained_pretrained_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick_probes(monkeypatch)
    monkeypatch.setattr(script, "N_STATES", 50)
    path = write_grid(
        tmp_path / "grid.toml",
        arms=["baseline", "alive"],
        probe={"n_frames": 500, "protocol": ["converged"]},
        **{"arm.alive": {"infonce_coef": 0.0, **FORM}},
    )
    runs, output = tmp_path / "runs", tmp_path / "output"
    assert rl_infonce(["sweep", str(path), "-o", str(runs / "sweep")]) == 0
    flags = ["--grid", str(path), "--runs", str(runs), "--output", str(output)]
    sizes = ["--budget", "128 frames", "--n-frames", "500"]
    for stage in ("agents", "pretrain"):
        for n_made in (2, 0):
            capsys.readouterr()
            monkeypatch.setattr(sys, "argv", ["alive_encoders.py", stage, *flags, *sizes])
            script.main()
            lines = capsys.readouterr().out.splitlines()
            assert sum(line.startswith("breakout-ppo-") for line in lines) == n_made
    for kind in script.KINDS:
        found = {each["arm"]: each for each in script.records(output, kind)}
        assert {arm: each["form"] for arm, each in found.items()} == {"baseline": {}, "alive": FORM}
        for each in found.values():
            assert each["hardware"]
            assert 0 < each["f1"]["converged"]["trained"] < 1
            assert 0 < each["f1"]["converged"]["untrained"] < 1
            assert each["measures"]["trained"] != each["measures"]["untrained"]
            assert 1 < each["measures"]["untrained"]["effective_rank"] < 50
        untrained = [each["measures"]["untrained"] for each in found.values()]
        assert untrained[0] != untrained[1], "each is compared with its own form"
    monkeypatch.setattr(sys, "argv", ["alive_encoders.py", "table", *flags])
    script.main()
    assert "| ST-DIM | dead features, untrained |" in capsys.readouterr().out
