"""PPO on a pretrained encoder: every arm on little data, and the table's arithmetic."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_infonce.networks.encoder_file import load_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from tests.experiments.loading import load

script = load("frozen_ppo.py")


@pytest.mark.slow
@pytest.mark.atari
def test_every_arm_trains_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "SEEDS", (0,))
    monkeypatch.setattr(script, "GAME", "breakout")
    monkeypatch.setattr(script, "N_ENVS", 1)
    models, build = {}, script.build

    def kept(arm: str, *others: Any) -> Any:
        models[arm] = build(arm, *others)
        models[arm].lr_schedule = lambda _: 1e-3  # its own falls to 0 by the first update
        return models[arm]

    monkeypatch.setattr(script, "build", kept)
    for _ in range(2):
        script.train(tmp_path, tmp_path, 128, "128 frames", 1000)
    assert len(capsys.readouterr().out.splitlines()) == 4, "the second time there is nothing to do"
    pretrained = load_encoder(tmp_path / "encoder.safetensors").state_dict()
    untrained = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(0)).state_dict()
    starts = {"frozen": pretrained, "fine_tuned": pretrained, "frozen_untrained": untrained}
    for arm, start in starts.items():
        learned = models[arm].policy.features_extractor.state_dict()
        is_kept = all(torch.equal(learned[name], tensor) for name, tensor in start.items())
        assert is_kept == arm.startswith("frozen"), arm
    for arm in script.ARMS:
        given = tmp_path / "encoder.safetensors" if arm in ("frozen", "fine_tuned") else None
        encoder = build(arm, 0, given, 128).policy
        cnn = encoder.features_extractor.cnn[0].weight
        assert torch.equal(cnn, pretrained["cnn.0.weight"]) == (arm in ("frozen", "fine_tuned"))
        assert cnn.requires_grad == (arm in ("scratch", "fine_tuned"))

    for changed, message in (
        (
            (256, "128 frames", 1000),
            r"scratch-0.json .* n_steps=128 \(not 256\).* another --output",
        ),
        ((128, "64 frames", 1000), r"frozen-0.json .* pretraining=.*128 frames.*not .*64 frames"),
        ((128, "128 frames", 900), r"frozen-0.json .*1000.*not .*900"),
    ):
        with pytest.raises(ValueError, match=message):
            script.train(tmp_path, tmp_path, *changed)
    with pytest.raises(
        ValueError, match=r"encoder.safetensors .*n_frames=1000 \(not 900\).*--runs"
    ):
        script.pretrained(tmp_path, "128 frames", 900)
    content = json.loads((tmp_path / "frozen-0.json").read_text())
    sha256 = hashlib.sha256((tmp_path / "encoder.safetensors").read_bytes()).hexdigest()
    assert content["encoder_sha256"] == sha256


@pytest.mark.parametrize("key", ["n_steps", "encoder_sha256"])
def test_runs_that_cannot_be_compared_share_no_table(tmp_path: Path, key: str) -> None:
    for seed, arm in enumerate(script.ARMS):
        content = {"arm": arm, "seed": 0, "n_steps": 100, "returns": [[90, 1.0]]}
        content["encoder_sha256"] = "a" if arm in script.PRETRAINED else None
        content["seconds"] = 60.0
        (tmp_path / f"{seed}.json").write_text(json.dumps(content))
    script.table(tmp_path)
    (tmp_path / "0.json").write_text(json.dumps(content | {key: 7 if key == "n_steps" else "b"}))
    with pytest.raises(ValueError, match=rf"Expected one `{key}` in the files"):
        script.table(tmp_path)


def test_the_table_takes_the_last_fifth_and_pairs_by_seed(tmp_path: Path) -> None:
    for arm, ends in (("frozen", (4.0, 6.0)), ("frozen_untrained", (1.0, 1.0))):
        for seed, end in enumerate(ends):
            returns = [[80, -50.0], [81, end - 1], [100, end + 1]]
            content = {"arm": arm, "seed": seed, "n_steps": 100, "returns": returns}
            content["seconds"] = 60.0 * (seed + 1)
            (tmp_path / f"{arm}-{seed}.json").write_text(json.dumps(content))
    rows = script.table(tmp_path).splitlines()
    assert "| frozen_untrained | 1.0, 1.0 | 1.0 | - | +4.0 (-8.7 to +16.7) | 1, 2 |" in rows
    # +3 and +5: mean 4, standard error 1, t of 1 degree of freedom 12.706
    assert "| frozen | 4.0, 6.0 | 5.0 | +4.0 (-8.7 to +16.7) | - | 1, 2 |" in rows
    assert "| scratch | missing | missing | - | - | missing |" in rows
