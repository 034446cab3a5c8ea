"""Every published number's command still runs, with the smallest budget that shows it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from tests.experiments.loading import load

pytestmark = [pytest.mark.atari, pytest.mark.slow]

train_speed = load("benchmarks/train_speed.py")


def test_train_speed_measures_every_arm_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    speeds = {"stock": 2.0, "fp32_off": 4.0, "fp32": 3.0, "bf16_off": 8.0, "bf16": 4.0}

    def measure(arm: str, game: str, n_steps: int, algorithm: str) -> dict[str, float]:
        asked.append(arm)
        return {
            "steps_per_second": speeds[arm],
            "processor_seconds": 6 / speeds[arm],
            "peak_mib": 1.0,
        }

    monkeypatch.setattr(train_speed, "measure_in_process", measure)
    summary = train_speed.compare("pong", 1024, 2, tuple(speeds))
    assert asked == [*speeds, *reversed(speeds)]
    ratios = {arm: median["speed_ratio"] for arm, median in summary["median"].items()}
    assert ratios == {arm: speed / 2 for arm, speed in speeds.items()}
    assert "| fp32 | 3 | 1.50 | 1.50 to 1.50 | 1.00 |" in train_speed.table(summary)
    of_loss = "| fp32 | 0.750 (0.750 to 0.750) | 1.333 (1.333 to 1.333) | 1.000 (1.000 to 1.000) |"
    *_, first, second = train_speed.cost_table(summary).splitlines()
    assert first == of_loss
    assert second.startswith("| bf16 | 0.500 ")


@pytest.mark.thorough
def test_train_speed_counts_the_arithmetic_of_updates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_speed, "N_STEPS", 32)
    off, on = (
        train_speed.flops_of_update(train_speed.build(arm, "pong"), 8 * 32) / 1e9
        for arm in ("fp32_off", "fp32")
    )
    # NatureCNN: multiply-adds of three convolutions and a layer, twice backward but to the images
    first, rest = 64 * 4 * 32 * 400, 16 * 32 * 64 * 81 + 9 * 64 * 64 * 49 + 3136 * 512
    per_image = 2 * (2 * first + 3 * rest)
    heads = 3 * 2 * 512 * 7
    assert off == pytest.approx(4 * 256 * (per_image + heads) / 1e9, rel=1e-3)
    assert on > 1.2 * off


def test_train_speed_times_rollouts_and_updates(monkeypatch: pytest.MonkeyPatch) -> None:

    def small(arm: str, game: str, algorithm: str) -> PPO:
        assert (arm, game, algorithm) == ("fp32", "pong", "PPO")
        net = {"net_arch": [64]}
        return PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, policy_kwargs=net)

    monkeypatch.setattr(train_speed, "build", small)
    monkeypatch.setattr(train_speed, "N_ENVS", 1)
    monkeypatch.setattr(train_speed, "N_STEPS", 32)
    monkeypatch.setitem(train_speed.COUNTED, "PPO", 32)
    monkeypatch.setattr(train_speed, "matmul_speed", lambda _: 1.0)
    found = train_speed.measure("fp32", "pong", 64)
    assert 0 < found["rollout_share"] < 1
    # two layers of two networks; forward, and backward but to the observations
    per_step = 2 * (2 * 2 * 4 * 64 + 3 * (64 * 2 + 64 * 1))
    assert found["gflop_per_iteration"] == pytest.approx(10 * 32 * per_step / 1e9, rel=1e-3)
    seconds = 64 / found["steps_per_second"] * (1 - found["rollout_share"])
    speed = 2 * found["gflop_per_iteration"] / seconds
    assert found["update_gflop_per_second"] == pytest.approx(speed)


@pytest.mark.parametrize("arm", ["stock", "bf16", "fp32_minibatch"])
def test_train_speed_builds_what_it_names(arm: str) -> None:
    model = train_speed.build(arm, "pong")
    extractor = model.policy.features_extractor
    assert type(extractor).__name__ == ("NatureCNN" if arm == "stock" else "InfoNCEExtractor")
    assert model.observation_space.shape == (4, 84, 84)
    if arm != "stock":
        wanted = "minibatch" if arm.endswith("minibatch") else "buffer"
        assert extractor.settings.pairs_from == wanted
    assert (model.n_envs, model.n_steps, model.batch_size, model.n_epochs) == (8, 128, 256, 4)
    assert len(model.policy.mlp_extractor.policy_net) == 0


def test_train_speed_builds_dqn_with_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(train_speed.DQN_SIZES, "buffer_size", 100)
    model = train_speed.build("fp32_minibatch_8", "pong", "DQN")
    settings = model.policy.q_net.features_extractor.settings
    assert (settings.pairs_from, settings.n_pairs) == ("minibatch", 8)
    assert (model.n_envs, model.train_freq.frequency, model.batch_size) == (1, 4, 32)
    model.get_env().close()


def test_train_speed_times_ppo_in_fast_formats_and_dqn_in_its_own_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train_speed, "has_fast_bf16", lambda _: False)
    of_ppo = ("stock", "fp32_off", "fp32", "fp32_minibatch")
    assert train_speed.default_arms("PPO") == of_ppo
    monkeypatch.setattr(train_speed, "has_fast_bf16", lambda _: True)
    assert train_speed.default_arms("PPO") == (*of_ppo, "bf16_off", "bf16", "bf16_minibatch")
    assert train_speed.default_arms("DQN") == (*of_ppo, "fp32_minibatch_8", "fp32_every_8")


def test_defaults_probe_reads_a_linear_target_on_held_out_data() -> None:
    defaults = load("defaults.py")
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    linear = features @ torch.ones(5, 1, dtype=torch.float64) + 7
    noise = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    targets = torch.cat([linear, noise], dim=1)
    r2 = defaults.held_out_r2((features[:300], targets[:300]), (features[300:], targets[300:]))
    shrinkage = 0.1 / 1.1  # a penalty of a tenth, on features of variance one
    assert float(r2[0]) == pytest.approx(1 - shrinkage**2, abs=2e-3)
    assert r2[1] < 0.1


@pytest.mark.thorough
def test_defaults_run_and_table_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = load("defaults.py")
    defaults.CHANGES[:] = [{}]
    monkeypatch.setattr(defaults, "N_ENVS", 2)
    defaults.RAM.pop("breakout")
    defaults.run_all(tmp_path, seeds=[0], n_steps=256, n_probe_steps=600)
    found: dict[str, Any] = json.loads((tmp_path / "pong-0-base.json").read_text())
    assert set(found["r2"]) == {"ball_x", "ball_y", "player_y", "enemy_y"}
    assert found["infonce"]["loss"] > 0
    assert f"| base | {found['mean_r2']:.3f}" in defaults.table(tmp_path)


@pytest.mark.thorough
def test_pong_curve_draws_learned_accuracy_beside_both_floors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pong_curve = load("pong_curve.py")
    monkeypatch.setattr(pong_curve, "N_ENVS", 2)
    monkeypatch.setattr(pong_curve, "N_DRAWS", 2)
    for arm in ("default", "drawn"):
        path = tmp_path / f"{arm}-0.csv"
        pong_curve.train(arm, 0, 512, path)
        curves = pong_curve.read(path)
        assert curves["step"].tolist() == [512]
        assert all(np.isfinite(curves[name]).all() for name in pong_curve.COLUMNS)
    pong_curve.draw(tmp_path)
    retrieved = pong_curve.table(tmp_path).splitlines()[-2:]
    assert [row.split(" | ")[1] for row in retrieved] == ["32", "32"]
    assert (tmp_path / "pong_curve.png").stat().st_size > 10_000
