"""The table of pretrained encoders: every stage on little data, and its arithmetic."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.atari.published import published_scores
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.probing import ProbeScores, Score
from tests.experiments.loading import load

script = load("stdim_table.py")


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:Expected at least 3 games")
@pytest.mark.thorough
def test_cells_are_filled_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = script.Sizes("1", 800, 2000)
    cells = [script.Cell("breakout", name, 0) for name in ("majority", "infonce")]
    runs, output = tmp_path / "runs", tmp_path / "output"
    runs.mkdir()
    output.mkdir()
    script.run(cells, sizes, runs, output)
    assert len(capsys.readouterr().out.splitlines()) == 2
    script.run(cells, sizes, runs, output)
    assert not capsys.readouterr().out
    content = json.loads((output / "breakout-infonce-0.json").read_text())
    assert content["pretraining"]["step"] == 1
    with pytest.raises(ValueError, match=r"'budget': '3'.*got .*'budget': '1'"):
        script.run(cells, script.Sizes("3", 800, 2000), runs, output)
    scores = {name: ProbeScores.from_json(each) for name, each in content["scores"].items()}
    assert [(name, each.protocol) for name, each in scores.items()] == [
        (name, name) for name in ("anand2019", "converged")
    ]
    for each in scores.values():
        assert f"| {each.mean.f1_weighted:.3f} |" in script.table(output)


def test_random_is_the_untrained_encoder_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[Any] = []

    def note(cell: Any, encoder: Any, sizes: Any) -> dict[str, ProbeScores]:
        probed.append(encoder)
        return {}

    monkeypatch.setattr(script, "probed", note)
    content = script.fill(script.Cell("pong", "random", 3), script.Sizes(), tmp_path)
    assert content["pretraining"] == {}
    expected = STDIMEncoder(torch.Generator().manual_seed(3)).state_dict()
    for name, tensor in probed[0].state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_a_cell_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def fill(cell: Any, sizes: Any, runs: Path) -> dict[str, Any]:
        if cell.objective == "cpc":
            raise ValueError("The training part is too short.")
        if cell.objective == "vae":
            raise FloatingPointError("Expected a finite gradient.")
        return {"objective": cell.objective}

    monkeypatch.setattr(script, "fill", fill)
    flags = ["--runs", f"{tmp_path}/runs", "--output", f"{tmp_path}/output", "--games", "pong"]
    command = ["stdim_table.py", "run", *flags, "--objectives", "cpc", "stdim", "vae", "infonce"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match=r"Not filled.*: pong-cpc-0, pong-vae-0\."):
        script.main()
    filled = {path.name for path in (tmp_path / "output").glob("*.json")}
    assert filled == {"pong-stdim-0.json", "pong-infonce-0.json"}
    said = capsys.readouterr().err
    assert "pong-cpc-0: The training part is too short." in said
    assert "pong-vae-0: Expected a finite gradient." in said


def scores(f1: float, small: float | None = None) -> ProbeScores:
    categories = {"agent_localization": Score(f1, f1, f1)}
    if small is not None:
        categories["small_object_localization"] = Score(small, small, small)
    mean = Score(f1, f1, f1)
    return ProbeScores("converged", mean, categories, {}, {}, {}, {"test": 1}, {"test": 1}, {})


SIZES = {"budget": "2", "n_frames": 800, "n_probe_frames": 2000}


def put(
    folder: Path, game: str, objective: str, seed: int, found: ProbeScores, **changes: Any
) -> None:
    both = {protocol: found.to_json() for protocol in ("anand2019", "converged")}
    content = {"game": game, "objective": objective, "seed": seed, "scores": both, **SIZES}
    content |= {"labels_hash": f"of {game}"} | changes
    (folder / f"{game}-{objective}-{seed}.json").write_text(json.dumps(content))


def test_the_table_averages_seeds_games_and_categories(tmp_path: Path) -> None:
    put(tmp_path, "pong", "random", 0, scores(0.2, 0.1))
    put(tmp_path, "pong", "random", 1, scores(0.4, 0.3))
    put(tmp_path, "pong", "stdim", 0, scores(0.8, 0.6))
    put(tmp_path, "freeway", "random", 0, scores(0.5))
    rows = script.table(tmp_path).splitlines()
    assert rows[0] == "| anand2019 | random | stdim |"
    assert "| freeway | 0.500 | missing |" in rows
    published = published_scores("freeway")
    assert (
        f"| *freeway, published* | {published['random-cnn']:.2f} | {published['st-dim']:.2f} |"
        in rows
    )
    # 0.2 and 0.4: mean 0.3, standard error 0.1, t of 1 degree of freedom 12.706
    assert "| pong | 0.300 (-0.971 to 1.571) | 0.800 |" in rows
    assert "| mean of 2 | 0.400 | missing |" in rows
    assert "| agent localization | 0.400 | missing |" in rows
    assert "| small object localization | 0.200 | 0.600 |" in rows
    assert sum("published" in row for row in rows) == 3
    both = [published_scores(game) for game in ("freeway", "pong")]
    means = [sum(each[name] for each in both) / 2 for name in ("random-cnn", "st-dim")]
    assert f"| *mean, published* | {means[0]:.2f} | {means[1]:.2f} |" in rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "3"}, r"the sizes in .*pong-stdim-0.json .*'2'.*got .*'3'"),
        ({"n_frames": 900}, r"the sizes .*got .*900"),
        ({"labels_hash": "other"}, r"the labels of pong in .* to be of pong .*got other"),
    ],
)
def test_cells_that_cannot_be_compared_share_no_table(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    put(tmp_path, "freeway", "random", 0, scores(0.5))
    put(tmp_path, "pong", "random", 0, scores(0.5))
    script.table(tmp_path)
    put(tmp_path, "pong", "stdim", 0, scores(0.5), **changes)
    with pytest.raises(ValueError, match=message):
        script.table(tmp_path)


def test_differences_are_taken_within_games(tmp_path: Path) -> None:
    for game, random, stdim in (("pong", 0.2, 0.5), ("boxing", 0.4, 0.5)):
        put(tmp_path, game, "random", 0, scores(random))
        put(tmp_path, game, "stdim", 0, scores(stdim - 0.05))
        put(tmp_path, game, "stdim", 1, scores(stdim + 0.05))
    put(tmp_path, "pong", "infonce", 0, scores(0.6))
    rows = script.table(tmp_path).splitlines()
    # +0.3 and +0.1: mean 0.2, standard error 0.1, t of 1 degree of freedom 12.706
    assert "| stdim - random | +0.100 | +0.300 | +0.200 (-1.071 to +1.471) |" in rows
    assert "| stdim - infonce | missing | -0.100 | missing |" in rows
    assert "| positional_dim - stdim | missing | missing | missing |" in rows


def test_seen_counts_the_test_frames_whose_whole_ram_was_in_pretraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # equal in the first byte, in the last, in both, in order reversed; row 4 is no test frame
    probe = np.array([[1, 9], [9, 2], [1, 2], [2, 1], [1, 2], [1, 2]], np.uint8)
    rams = {800: np.array([[1, 2], [3, 4]], np.uint8), 500: probe}

    def frames_of(game: str, n_frames: int, seed: int) -> Any:
        assert seed == (script.PRETRAINING_SEED if n_frames == 800 else script.PROBE_SEED)
        return SimpleNamespace(ram=rams[n_frames], labelled=lambda view, version: (view, version))

    def make_task(labelled: Any, rng: Any, **settings: Any) -> Any:
        assert settings == {"min_episode_length": 65, "entropy_on": "all"}
        return SimpleNamespace(split=SimpleNamespace(test=np.array([0, 1, 2, 3, 5])))

    monkeypatch.setattr(script, "frames_of", frames_of)
    monkeypatch.setattr(script, "make_task", make_task)
    path = tmp_path / "seen.json"
    flags = ["--games", "pong", "--n-frames", "800", "--n-probe-frames", "500"]
    monkeypatch.setattr("sys.argv", ["stdim_table.py", "seen", *flags, "--output", str(path)])
    script.main()
    content = json.loads(path.read_text())
    assert content["games"] == {"pong": {"seen": 2, "test": 5}}
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["| test part | pong |", "| --- | --- |", "| seen in pretraining | 40.0% |"]
