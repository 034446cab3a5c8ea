"""`rl-infonce probe` from flags to files, on few frames and small encoders."""

import errno
import json
import re
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.torch_layers import NatureCNN

from rl_infonce.atari import collect, labels_hash, load_frames
from rl_infonce.cli import main, make_parser
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.probing import ProbeScores, extract_features, majority_scores
from rl_infonce.runs.claim import held
from rl_infonce.scoring import probe_runner as scoring_cells
from tests.agents.models import OwnCNN, save_model
from tests.cli.running import errors_of, output_of, refusal

pytestmark = pytest.mark.atari

Fitted = list[tuple[float, str, int]]  # a feature, protocol and seed of each probe
PROBE = ("probe", "--frames", "frames", "--device", "cpu", "--game", "pong")


def small(seed: int, features_dim: int = 4) -> PixelEncoder:
    return PixelEncoder((4, 84, 84), features_dim, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames")
    for game in ("pong", "boxing"):
        collect(game, 640, folder=folder / game, views=["agent"], seed=3)
    return folder


@pytest.fixture
def here(tmp_path: Path, frames: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder to work in, with an encoder and links to frames of two games."""
    monkeypatch.chdir(tmp_path)
    save_encoder(small(0), "small.safetensors")
    (tmp_path / "frames").symlink_to(frames)
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Fitted:
    """Replace the fitting, and return what reaches it."""
    seen: Fitted = []

    def fake(
        features: Any, task: Any, *, protocol: str, seed: int, device: torch.device
    ) -> tuple[ProbeScores, None]:
        assert features.shape == (640, features.shape[1])
        seen.append((float(features.sum()), protocol, seed))
        return majority_scores(task, seed=seed), None

    monkeypatch.setattr(scoring_cells, "probe_features", fake)
    return seen


def probe(*flags: str) -> int:
    return main([*PROBE, *flags])


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "probes" / "scores.json").read_text("utf-8"))
    return found


def cells(folder: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    found = content(folder)
    names = {key: entry["name"] for key, entry in found["encoders"].items()}
    return {(names[c["encoder"]], c["seed"], c["protocol"]): c for c in found["cells"]}


@pytest.mark.thorough
def test_two_files_of_one_encoder_are_named_and_scored_once(
    here: Path, quick: Fitted, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("small.safetensors", "copy.safetensors")
    assert not probe("--features-of", "small.safetensors", "copy.safetensors", "--seeds", "0", "0")
    found = capsys.readouterr().err
    assert "copy.safetensors holds the encoder of small.safetensors, which is scored once" in found
    scored = cells(here)
    assert {name for name, *_ in scored} == {"majority", "random", "small.safetensors"}
    assert {seed for _, seed, _ in scored} == {0}
    assert len(content(here)["cells"]) == len(scored)


@pytest.mark.slow
def test_probing_writes_scores_and_table_and_is_not_repeated(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*PROBE, "--features-of", "small.safetensors", "--protocol", "anand2019")
    printed = output_of(*words)
    found, scored = content(here), cells(here)
    assert found["settings"] == {
        "view": "agent",
        "n_frames": 640,
        "policy": "random",
        "data_seed": 3,
        "labels": "corrected",
        "precision": "fp32",
        "split_by": "game",
    }
    assert set(scored) == {(n, 0, "anand2019") for n in ("small.safetensors", "random", "majority")}
    (run,) = found["runs"]
    assert run["versions"]["torch"] == version("torch")  # torch.__version__ adds the CUDA build
    assert run["hardware"]["device"] == "cpu"
    assert run["wall_seconds"] > 0
    for name, cell in ((key[0], cell) for key, cell in scored.items()):
        scores = ProbeScores.from_json(cell["scores"])
        assert scores.protocol == ("majority" if name == "majority" else "anand2019")
        assert scores.settings["data"]["min_episode_length"] == 65
        assert "player_score" in scores.not_probed
        assert (cell["labels_hash"], cell["game"]) == (labels_hash("pong"), "pong")
        assert "penalty_patience" not in cell  # this protocol searches for no penalty
    table = (here / "probes" / "scores.md").read_text("utf-8")
    f1 = scored["small.safetensors", 0, "anand2019"]["scores"]["mean"]["f1_weighted"]
    assert f"| pong | small.safetensors | {f1:.3f} (" in table
    assert "| pong | *published, st-dim* | 0.81 |" in table
    assert f"pong, small.safetensors, seed 0, anand2019: F1 {f1:.3f} (" in printed

    monkeypatch.setattr(scoring_cells, "probe_features", None)
    assert "pong: 3 finished before" in output_of(*words)
    assert content(here)["cells"] == found["cells"]


def test_one_process_at_a_time_writes_scores_in_a_folder(here: Path, quick: list[Any]) -> None:
    (here / "probes").mkdir()
    with held(here / "probes", "writes scores in it"):
        said = refusal(*PROBE, "--features-of", "small.safetensors")
    assert "writes scores in it. Wait for it, or choose another --output" in said
    assert not quick
    assert not (here / "probes" / "scores.json").exists()


def test_a_disk_that_gets_full_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_more: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scoring_cells, "probe_games", full)
    said = errors_of(*PROBE, "--features-of", "majority", "--view", "agent")
    assert "probe: [Errno 28] No space left on device. Run the same" in said


def test_the_shortest_episode_that_is_used_can_be_chosen(here: Path) -> None:
    flags = ("--features-of", "majority", "--view", "agent", "--min-episode-length")
    said = errors_of(*PROBE, *flags, "81")
    assert "at least `min_episode_length`=81 frames, got 8 of at most 80" in said
    assert probe(*flags, "1", "--output", "all") == 0
    found = json.loads((here / "all" / "scores.json").read_text("utf-8"))
    assert found["settings"]["min_episode_length"] == 1
    used = [cell["scores"]["settings"]["data"]["min_episode_length"] for cell in found["cells"]]
    assert used == [1, 1]
    assert "min_episode_length=1" in (here / "all" / "scores.md").read_text("utf-8")


def test_neighbours_and_positions_are_scored_beside_the_probes(here: Path) -> None:
    protocols = ("--protocol", "knn", "ridge")
    flags = ("--features-of", "small.safetensors", *protocols, "--seeds", "0", "1")
    printed = output_of(*PROBE, *flags)
    scored = cells(here)
    names = ("small.safetensors", "random", "majority")
    assert set(scored) == {(n, s, p) for n in names for s in (0, 1) for p in ("knn", "ridge")}
    assert ProbeScores.from_json(scored["random", 0, "knn"]["scores"]).protocol == "knn"
    assert ProbeScores.from_json(scored["majority", 0, "knn"]["scores"]).protocol == "majority"
    errors: dict[str, list[float]] = {
        name: [
            scored[name, seed, "ridge"]["scores"]["variables"]["ball_x"]["median_absolute_error"]
            for seed in (0, 1)
        ]
        for name in names
    }
    assert errors["random"] != errors["majority"]
    floor = scored["majority", 0, "ridge"]["scores"]["variables"]
    assert all(score["r2"] <= 0 for score in floor.values())  # the mean position of other frames
    table = (here / "probes" / "scores.md").read_text("utf-8")
    assert "## Protocol `knn`" in table
    assert "## Protocol `ridge`" not in table
    (row,) = (line for line in table.splitlines() if line.startswith("| pong | ball_x |"))
    assert [cell.split(" (")[0].strip() for cell in row.split("|")[3:6]] == [
        f"{np.mean(errors[name]):.1f}" for name in names
    ]
    assert "| variable | small.safetensors | random | mean position |" in table
    assert "pong, random, seed 0, ridge: median error " in printed
    assert "pong: 12 finished before" in output_of(*PROBE, *flags)


@pytest.mark.thorough
def test_a_seed_changes_split_untrained_weights_and_probe(
    here: Path, quick: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted: list[Any] = []

    def count(encode: Any, observations: Any, **settings: Any) -> Any:
        extracted.append(encode)
        return extract_features(encode, observations, **settings)

    monkeypatch.setattr(scoring_cells, "extract_features", count)
    assert probe("--features-of", "small.safetensors", "--seeds", "0", "1") == 0
    assert [(protocol, seed) for _, protocol, seed in quick] == 2 * [
        (protocol, seed) for seed in (0, 1) for protocol in ("converged", "anand2019")
    ]
    trained, untrained = (
        {round(feature, 3) for feature, _, _ in part} for part in (quick[:4], quick[4:])
    )
    assert (len(trained), len(untrained), len(extracted)) == (1, 2, 3)
    majority = [cells(here)["majority", seed, "converged"]["scores"]["mean"] for seed in (0, 1)]
    assert majority[0] != majority[1], "the split is the same"
    assert len(cells(here)) == 12


def test_features_are_those_of_the_encoder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    def fake(features: Any, task: Any, **_settings: Any) -> tuple[ProbeScores, None]:
        taken.append(features)
        return majority_scores(task), None

    monkeypatch.setattr(scoring_cells, "probe_features", fake)
    flags = ("--features-of", "small.safetensors", "--protocol", "converged")
    assert probe(*flags) == 0
    observations = collect("pong", 640, folder="frames/pong", views=["agent"], seed=3).observations(
        "agent"
    )
    with torch.no_grad():
        expected = small(0)(torch.from_numpy(observations[500:510])).numpy()
    np.testing.assert_allclose(taken[0][500:510], expected, rtol=1e-4, atol=1e-6)
    assert probe(*flags, "--precision", "bf16", "-o", "half") == 0
    error = np.abs(taken[2][500:510] - expected).max()
    assert 1e-4 < error / np.abs(expected).max() < 0.02


def test_runs_add_up_in_one_folder(here: Path, quick: Fitted) -> None:
    save_encoder(small(0, 5), "other.safetensors")
    assert probe("--features-of", "small.safetensors", "--protocol", "converged") == 0
    printed = output_of(*PROBE, "--features-of", "other.safetensors", "--protocol", "converged")
    assert len(quick) == 4
    assert "pong, untrained nature 5 on 4x84x84, fp32, seed 0, converged: F1" in printed
    assert len(content(here)["runs"]) == 2
    assert [cell["run"] for cell in content(here)["cells"]] == [0, 0, 0, 1, 1]
    table = (here / "probes" / "scores.md").read_text("utf-8")
    for row in ("small.safetensors", "untrained nature 4 on 4x84x84, fp32", "majority"):
        assert f"| pong | {row} | " in table


def test_another_file_of_the_same_name_replaces_the_scores(here: Path, quick: Fitted) -> None:
    flags = ("--features-of", "small.safetensors", "--protocol", "converged")
    assert probe(*flags) == 0
    save_encoder(small(9), "small.safetensors")
    assert "small.safetensors has changed" in output_of(*PROBE, *flags)
    assert len(quick) == 3  # trained, untrained, changed
    assert len(cells(here)) == len(content(here)["cells"]) == len(content(here)["encoders"]) == 3


def test_files_of_one_name_in_two_folders_keep_their_scores(
    here: Path, quick: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--features-of", "small.safetensors", "--protocol", "converged", "--output")
    (here / "seed1").mkdir()
    save_encoder(small(9), "seed1/small.safetensors")
    assert probe(*flags, str(here / "probes")) == 0
    (here / "seed1" / "frames").symlink_to(here / "frames")
    monkeypatch.chdir(here / "seed1")
    assert probe(*flags, str(here / "probes")) == 0
    named = [each for each in content(here)["encoders"].values() if each["kind"] == "file"]
    assert [each["name"] for each in named] == 2 * ["small.safetensors"]
    assert len({each["place"] for each in named}) == 2
    assert str(here) not in json.dumps(named)
    assert len(content(here)["cells"]) == 4


def test_other_labels_or_searches_replace_the_scores(
    here: Path, quick: Fitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--features-of", "random", "--view", "agent", "--protocol", "converged")
    assert probe(*flags) == 0
    n_cells = len(content(here)["cells"])
    monkeypatch.setattr(scoring_cells, "labels_hash", lambda game, version: f"{game} mended")
    assert "pong: labels have changed" in output_of(*PROBE, *flags)
    assert [cell["labels_hash"] for cell in content(here)["cells"]] == ["pong mended"] * n_cells
    monkeypatch.setattr(scoring_cells, "PENALTY_PATIENCE", 9)
    assert "pong: penalties are searched otherwise" in output_of(*PROBE, *flags)
    assert [cell["penalty_patience"] for cell in content(here)["cells"]] == [9] * n_cells
    assert len(quick) == 3
    assert probe(*flags) == 0
    assert len(quick) == 3


@pytest.mark.thorough
def test_other_frames_replace_the_scores(here: Path, quick: Fitted) -> None:
    flags = ("--game", "pong", "--features-of", "random", "--protocol", "converged")
    assert probe(*flags, "--view", "agent") == 0
    (here / "frames").unlink()
    collect("pong", 640, folder="frames/pong", views=["agent"], seed=3, n_shards=9)
    said = output_of(*PROBE, *flags, "--view", "agent", "--seeds", "0", "1")
    assert "frames have changed" in said
    assert {cell["frames_hash"] for cell in content(here)["cells"]} == {
        content(here)["cells"][0]["frames_hash"]
    }
    assert len(content(here)["cells"]) == 4


def test_the_majority_alone_reads_no_features(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_cells, "extract_features", None)
    assert probe("--features-of", "majority", "--view", "agent", "--protocol", "converged") == 0
    assert list(cells(here)) == [("majority", 0, "converged")]


def test_a_failed_cell_is_named_the_others_done_and_the_next_run_heals_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_converged(_features: Any, task: Any, *, protocol: str, **_: Any) -> Any:
        if protocol == "converged":
            raise FloatingPointError("the cat ate the gradient")
        return majority_scores(task), None

    flags = ("--game", "pong", "boxing", "--features-of", "random", "--view", "agent")
    monkeypatch.setattr(scoring_cells, "probe_features", fail_converged)
    said = errors_of(*PROBE, *flags)
    found = content(here)
    status = {
        (cell["game"], found["encoders"][cell["encoder"]]["name"], cell["protocol"]): cell["status"]
        for cell in found["cells"]
    }
    assert status == {
        (game, name, protocol): "failed" if (name, protocol) == ("random", "converged") else "done"
        for game in ("boxing", "pong")
        for name in ("random", "majority")
        for protocol in ("converged", "anand2019")
    }
    assert "pong, random, seed 0, converged: FAILED: FloatingPointError: the cat ate" in said
    table = (here / "probes" / "scores.md").read_text("utf-8")
    assert "- pong, random, seed 0, converged: FloatingPointError: the cat" in table

    monkeypatch.setattr(
        scoring_cells, "probe_features", lambda _f, task, **_: (majority_scores(task), None)
    )
    assert probe(*flags) == 0
    assert {cell["status"] for cell in content(here)["cells"]} == {"done"}
    assert "Failed" not in (here / "probes" / "scores.md").read_text("utf-8")


def test_frames_that_cannot_be_opened_fail_their_game_alone(
    here: Path, quick: Fitted, frames: Path
) -> None:
    (here / "frames").unlink()
    (here / "frames").mkdir()
    (here / "frames" / "boxing").symlink_to(frames / "boxing")
    shutil.copytree(frames / "pong", here / "frames" / "pong")
    damaged = min((here / "frames" / "pong").rglob("*.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    flags = ("--game", "pong", "boxing", "--features-of", "majority", "--view", "agent")
    assert probe(*flags, "--protocol", "converged") == 1
    by_game = {cell["game"]: cell for cell in content(here)["cells"]}
    assert (by_game["boxing"]["status"], by_game["pong"]["status"]) == ("done", "failed")
    assert damaged.name in by_game["pong"]["error"]


def test_finished_frames_of_another_ale_py_are_probed(here: Path, frames: Path) -> None:
    (here / "frames").unlink()
    folder = Path(shutil.copytree(frames / "pong", here / "frames" / "pong"))
    manifest = folder / "manifest.json"
    own = f'"ale_py": "{version("ale-py")}"'
    assert own in manifest.read_text("utf-8")
    manifest.write_text(manifest.read_text("utf-8").replace(own, '"ale_py": "0.10.1"'))
    flags = ("--features-of", "majority", "--view", "agent", "--protocol", "converged")
    assert probe(*flags) == 0
    (cell,) = content(here)["cells"]
    assert cell["scores"]["settings"]["data"]["ale_py"] == "0.10.1"

    shutil.rmtree(folder / "shard_00001")  # others would be played by another emulator
    assert probe(*flags, "--seeds", "1") == 1
    assert "ale_py='0.10.1' (not" in cells(here)["majority", 1, "converged"]["error"]


def test_a_lost_shard_of_random_play_is_played_again(here: Path, frames: Path) -> None:
    (here / "frames").unlink()
    shutil.copytree(frames / "pong", here / "frames" / "pong")
    shutil.rmtree(here / "frames" / "pong" / "shard_00001")
    flags = ("--features-of", "majority", "--view", "agent", "--protocol", "converged")
    assert probe(*flags) == 0
    assert content(here)["cells"][0]["frames_hash"] == load_frames(frames / "pong").frames_hash


def test_stopping_keeps_what_is_done(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_features: Any, task: Any, *, protocol: str, **_: Any) -> Any:
        if protocol == "anand2019":
            raise KeyboardInterrupt
        return majority_scores(task), None

    monkeypatch.setattr(scoring_cells, "probe_features", stop)
    said = errors_of(*PROBE, "--features-of", "small.safetensors", code=130)
    assert "Run the same command to go on" in said
    assert list(cells(here)) == [("small.safetensors", 0, "converged")]
    names = {path.name for path in (here / "probes").iterdir()}
    assert names == {".lock", "scores.json", "scores.md"}


def test_models_are_found_by_file_and_run_directory(here: Path, quick: Fitted) -> None:
    save_model(here / "ppo.zip", extractor=NatureCNN)
    (here / "pong_1").mkdir()
    save_model(here / "pong_1" / "model.zip")  # channels-last NatureCNN
    assert probe("--features-of", "ppo", "pong_1", "--protocol", "converged") == 0
    assert [name for name, _, _ in cells(here)] == ["ppo", "pong_1", "random", "majority"]


def test_code_of_a_model_runs_only_when_trusted(here: Path, quick: Fitted) -> None:
    save_model(here / "own.zip", extractor=OwnCNN, seed=1)  # seed 0 draws the untrained one
    assert "OwnCNN" in refusal(*PROBE, "--features-of", "own.zip")
    with pytest.warns(UserWarning, match=r"The code that own.zip contains is executed"):
        assert probe("--features-of", "own.zip", "--trust-pickle", "--protocol", "converged") == 0
    assert quick[0] != quick[1]  # trained and untrained
    descriptions = [entry["description"] for entry in content(here)["encoders"].values()]
    assert descriptions == 2 * ["OwnCNN 8 on 4x84x84"] + ["most frequent label"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--game", "breakuot"], "Did you mean 'breakout'"),
        (["--game", "HalfCheetah-v5"], "Atari games: .* RAM, got the environment HalfCheetah-v5"),
        (["--game", "tetris"], "RAM labels .*games are asteroids, .*zaxxon|games are"),
        (["--labels", "correct"], "`--labels` .*Did you mean 'corrected'"),
        (["--protocol", "convergd"], "invalid choice: 'convergd'"),
        (["--features-of", "none.zip"], "`--features-of` .* got none.zip: no such file"),
        (["--features-of", "frames"], "`--features-of` .* got the folder frames, which has none"),
        (["--output", "small.safetensors"], "`--output` to be a folder .* got small.safetensors"),
        (["--features-of", "text.zip"], "text.zip to be a whole zip file"),
        (["--features-of", "text.safetensors"], "safetensors file at text.safetensors"),
        (
            ["--features-of", "tall.zip"],
            r"tall.zip to read images of shape \(4, 84, 84\), .*shape \(4, 96, 96\)",
        ),
        (
            ["--features-of", "small.safetensors", "--view", "screen"],
            r"of shape \(1, 210, 160\), .* shape \(4, 84, 84\). Use --view agent",
        ),
        (["--seeds", "0", "-1"], "`--seeds` to be at least 0, got -1"),
        (["--n-frames", "7"], "`--n-frames`.*>= 8"),
        (["--n-frames", "1300"], "--n-frames as the frames in .*have it, 640, got 1300"),
        (["--policy", "random-without-noop"], "--policy as the frames in .* 'random', got"),
        (["--data-seed", "0"], "--data-seed as the frames in .*have it, 3, got 0"),
        (["--view", "screen"], r"view 'screen' in frames.*\['agent'\]"),
        (["--game", "boxing", "--frames", "frames/pong"], "frames of boxing in .* got pong"),
        (["--device", "cuda:99"], "--device"),
        (["--output", "file"], "File exists|Not a directory"),
        (["--output", "foreign"], "scores.json to hold scores of `rl-infonce probe`"),
    ],
)
def test_wrong_usage_exits_2_with_the_reason_before_anything_is_written(
    here: Path, flags: list[str], message: str
) -> None:
    for name in ("file", "text.zip", "text.safetensors"):
        (here / name).write_text("nothing")
    (here / "foreign").mkdir()
    (here / "foreign" / "scores.json").write_text("{}")
    if "tall.zip" in flags:
        save_model(here / "tall.zip", extractor=NatureCNN, size=96)
    view = [] if "--view" in flags else ["--view", "agent"]
    said = refusal(*PROBE, "--features-of", "majority", *view, *flags)
    (error,) = [line for line in said.splitlines() if "error: " in line]
    assert re.search(message, error)
    assert not (here / "probes").exists()
    assert (here / "foreign" / "scores.json").read_text() == "{}"


def test_frames_whose_settings_differ_between_games_are_both_named(here: Path) -> None:
    source = (here / "frames").resolve()
    (here / "frames").unlink()
    shutil.copytree(source, here / "frames")
    manifest = here / "frames" / "boxing" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 3', '"seed": 4'))
    said = refusal(*PROBE, "boxing", "--features-of", "majority", "--view", "agent")
    assert re.search("--data-seed 3 in frames/pong and 4 in frames/boxing", said.replace("\n", " "))


def test_scores_of_other_settings_are_left_alone(here: Path) -> None:
    flags = ("--features-of", "majority", "--view", "agent", "--protocol", "converged")
    assert probe(*flags) == 0
    before = content(here)
    for other, message in (
        (("--labels", "anand2019"), "labels='anand2019' instead of 'corrected'"),
        (("--precision", "bf16"), "precision='bf16' instead of 'fp32'"),
        (("--min-episode-length", "2"), "min_episode_length=2 instead of None"),
    ):
        assert message in refusal(*PROBE, *flags, *other)
    assert content(here) == before


def test_all_games_are_those_with_labels(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fake(plan: Any, _scores: Any, **_: Any) -> bool:
        asked.extend(plan.games)
        return True

    monkeypatch.setattr(scoring_cells, "probe_games", fake)
    assert main(["probe", "--game", "all", "pong", "--labels", "anand2019"]) == 0
    assert len(asked) == len(set(asked)) == 22


@pytest.mark.thorough
def test_frames_go_into_a_cache_that_the_settings_name(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    flags = ["--features-of", "majority", "--protocol", "converged", "--n-frames", "640"]
    policy = ["--policy", "random-without-noop", "--view", "agent", "--data-seed", "5"]
    assert main(["probe", "--game", "pong", *flags, *policy]) == 0
    (folder,) = (here / "cache" / "rl_infonce" / "frames").iterdir()
    assert folder.name.startswith("pong-random_without_noop-agent-640-seed-5-ale-")
    assert content(here)["settings"]["policy"] == "random_without_noop"


def test_the_command_is_recorded_as_it_can_be_run_again(here: Path) -> None:
    flags = ("--features-of", "majority", "--view", "agent", "--protocol", "converged")
    given = [*flags, "--no-progress"]
    assert probe(*given) == 0
    (run,) = content(here)["runs"]
    words = shlex.split(run["command"])
    parsed, expected = (
        {k: v for k, v in vars(make_parser().parse_args(each)).items() if not callable(v)}
        for each in (words[1:], [*PROBE, *given])
    )
    assert parsed == expected
