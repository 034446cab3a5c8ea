"""PPO on a pretrained encoder: every arm on little data, and the tables' arithmetic."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.networks.encoder_file import load_encoder
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sweeps.grid import read_grid
from tests.experiments.loading import EXPERIMENTS, load
from tests.probing.quick import quick_probes

script = load("frozen_ppo.py")

FORM: dict[str, Any] = {"activation": "elu", "feature_activation": "simplicial"}
PROBE = {"n_frames": 1000, "protocol": ["converged"]}
STUDY = script.Study(("breakout",), (0,), 128, "128 frames", 1000, FORM, PROBE)


def test_the_study_of_four_games_has_the_encoder_that_stays_alive() -> None:
    pilot, study = (
        script.read_study(EXPERIMENTS / f"frozen_{name}.toml") for name in ("boxing", "ppo")
    )
    assert len(study.games) == 4
    assert not {*study.games} & {*pilot.games}
    alive = load("alive_encoders.py")
    tuned = read_grid(alive.GRID)
    chosen = alive.chosen(EXPERIMENTS / "results" / "alive_encoders", tuned)
    assert study.form == next(alive.form_of(c) for c in tuned.cells() if c.arm == chosen)


def test_nature_is_an_arm_of_its_own_where_the_form_differs() -> None:
    assert STUDY.arms == script.ARMS
    assert STUDY._replace(form={}).arms == ("scratch", "frozen_untrained", "frozen", "fine_tuned")
    assert STUDY.form_of("nature") == {}
    assert {str(STUDY.form_of(arm)) for arm in script.ARMS[1:]} == {str(FORM)}


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.thorough
def test_every_arm_trains_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "N_ENVS", 1)
    quick_probes(monkeypatch)
    models, build = {}, script.build

    def kept(study: Any, game: str, arm: str, *others: Any) -> Any:
        models[arm] = build(study, game, arm, *others)
        models[arm].lr_schedule = lambda _: 1e-3  # its own falls to 0 by the first update
        return models[arm]

    monkeypatch.setattr(script, "build", kept)
    for _ in range(2):
        script.train(STUDY, tmp_path, tmp_path)
    written = [line for line in capsys.readouterr().out.splitlines() if line.endswith(".json")]
    assert len(written) == 5, "the second time there is nothing to do"
    file = tmp_path / "encoders" / "breakout-0" / "encoder.safetensors"
    pretrained = load_encoder(file).state_dict()
    generator = torch.Generator().manual_seed(0)
    drawn = PixelEncoder((4, 84, 84), generator=generator, form=EncoderForm(**FORM)).state_dict()
    starts = {"frozen": pretrained, "fine_tuned": pretrained, "frozen_untrained": drawn}
    for arm, start in starts.items():
        learned = models[arm].policy.features_extractor.state_dict()
        is_kept = all(torch.equal(learned[name], tensor) for name, tensor in start.items())
        assert is_kept == arm.startswith("frozen"), arm
    for arm in script.ARMS:
        given = file if arm in script.PRETRAINED else None
        encoder = build(STUDY, "breakout", arm, 0, given).policy.features_extractor
        learned = models[arm].policy.features_extractor.state_dict()
        cnn = encoder.cnn[0].weight
        assert torch.equal(cnn, pretrained["cnn.0.weight"]) == (arm in script.PRETRAINED)
        assert cnn.requires_grad == (arm in ("nature", "scratch", "fine_tuned"))
        assert encoder.encoder.form == EncoderForm(**({} if arm == "nature" else FORM)), arm
        content = json.loads((tmp_path / f"breakout-{arm}-0.json").read_text())
        assert ("measures" in content) == cnn.requires_grad, arm
        if "measures" in content:
            assert {*content["f1"]["converged"]} == {"trained", "untrained"}
            assert content["measures"]["trained"] != content["measures"]["untrained"]
            model = tmp_path / "trained" / f"breakout-{arm}-0" / "model.zip"
            saved = read_encoder(model).state_dict()
            is_learned = (torch.equal(learned[name], saved[name]) for name in saved)
            assert all(is_learned), arm

    for changes, message in (
        ({"n_steps": 256}, r"breakout-nature-0.json .* n_steps=128 \(not 256\).*another --output"),
        ({"form": {}}, r"breakout-scratch-0.json .* form=.*simplicial.*\(not \{\}\)"),
        ({"budget": "64 frames"}, r"breakout-frozen-0.json .*128 frames.*not .*64 frames"),
    ):
        with pytest.raises(ValueError, match=message):
            script.train(STUDY._replace(**changes), tmp_path, tmp_path)
    with pytest.raises(
        ValueError, match=r"encoder.safetensors .*n_frames=1000 \(not 900\).*--runs"
    ):
        script.pretrained(STUDY._replace(n_frames=900), "breakout", 0, tmp_path)
    content = json.loads((tmp_path / "breakout-frozen-0.json").read_text())
    assert content["encoder_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def write_run(folder: Path, arm: str, seed: int, end: float, **changes: Any) -> None:
    """Write the file of a run that returns -50 in the first 80 of 100 steps, and then `end`."""
    content = {
        **{"game": "boxing", "arm": arm, "seed": seed, "n_steps": 100, "seconds": 60.0 * seed},
        "encoder_sha256": "a" if arm in script.PRETRAINED else None,
        "returns": [[80, -50.0], [81, end - 1], [100, end + 1]],
    }
    (folder / f"{arm}-{seed}.json").write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    "changes", [{"n_steps": 7, "returns": [[7, 1.0]]}, {"encoder_sha256": "b"}]
)
def test_runs_that_cannot_be_compared_share_no_table(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    for arm in script.ARMS:
        write_run(tmp_path, arm, 0, 1.0)
    script.read_runs(tmp_path)
    write_run(tmp_path, "frozen", 0, 1.0, **changes)
    with pytest.raises(ValueError, match=r"Expected the files of .* one number of steps"):
        script.read_runs(tmp_path)


def test_a_run_has_one_file(tmp_path: Path) -> None:
    write_run(tmp_path, "frozen", 0, 1.0)
    (tmp_path / "boxing-frozen-0.json").write_text((tmp_path / "frozen-0.json").read_text())
    with pytest.raises(ValueError, match=r"one file of each run, got two of boxing, frozen, 0"):
        script.read_runs(tmp_path)


def test_tables_are_by_game_and_pair_runs_by_seed(tmp_path: Path) -> None:
    for arm, ends in (("frozen", (4.0, 6.0)), ("frozen_untrained", (1.0, 1.0))):
        for seed, end in enumerate(ends, start=1):
            write_run(tmp_path, arm, seed, end)
    returns, over_untrained, *_notes = script.table(tmp_path, np.random.default_rng(0)).split(
        "\n\n"
    )
    # by hand: 80 hundredths of the budget return -50, 19 `end` - 1, and the last one `end` + 1
    assert "| boxing | frozen | -39.2 (-39.4 to -39.0) | 5.0 (4.0 to 6.0) | 2 |" in returns
    assert (
        "| boxing | frozen_untrained | -40.0 (-40.0 to -40.0) | 1.0 (1.0 to 1.0) | 2 |" in returns
    )
    # (0.2 * 3 + 0.2 * 5) / 2 = 0.8 of the 12 points between a random agent and a human
    assert "| frozen | no detectable difference | +0.07 (-0.15 to +0.28) |" in over_untrained


def test_what_ppo_makes_of_an_encoder_stands_beside_an_untrained_one(tmp_path: Path) -> None:
    for arm, more in (("nature", 0.0), ("scratch", 0.25)):
        for seed in (1, 2):
            of = {"dead_share": 0.5 - more, "dead_channels": 0.0, "effective_rank": 100.0}
            found = {
                "measures": {"untrained": of | {"dead_share": 0.125}, "trained": of},
                "f1": {"converged": {"untrained": 0.25, "trained": 0.5 + more + 0.01 * seed}},
            }
            write_run(tmp_path, arm, seed, 1.0 + 12 * more, **found)
    write_run(tmp_path, "frozen", 1, 1.0)
    blocks = script.table(tmp_path, np.random.default_rng(0)).split("\n\n")
    tables = [each for each in blocks if each.startswith("|")]
    returns, of_nature, of_scratch, features, of_untrained, against_nature = tables
    assert "| boxing | nature |" in returns
    # by hand: 0.2 of the budget at 3 more, of the 12 points between a random agent and a human
    assert "| scratch | higher | +0.05" in of_nature
    assert "| frozen |" in of_scratch
    assert "| nature | 0.12 | 0.50 | 0.00 | 0.00 | 100 | 100 | 0.250 | 0.515 | 2 |" in features
    assert "| scratch | 0.12 | 0.25 | 0.00 | 0.00 | 100 | 100 | 0.250 | 0.765 | 2 |" in features
    assert "frozen" not in features
    assert "| scratch | higher | +0.515" in of_untrained
    assert "| scratch | higher | +0.25" in against_nature
