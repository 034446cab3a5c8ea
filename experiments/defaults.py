"""Which critic, coefficient, pairs and horizon should be the defaults?

Changes one setting at a time around the base, trains PPO for a short budget on two games, freezes
the encoder and asks how much of the emulator's RAM a ridge regression reads from its features in an
emulator it has not seen. Arms to compare with: coefficient 0, and the untrained encoder.

    python experiments/defaults.py --output experiments/results/defaults      # hours; resumes
    python experiments/defaults.py --output experiments/results/defaults --table
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_infonce.report.table import markdown_table

BASE: dict[str, Any] = {
    "critic": "cosine",
    "infonce_coef": 0.1,
    "n_pairs": 32,
    "horizons": [4],
}
CHANGES: list[dict[str, Any]] = [
    {},
    {"infonce_coef": 0.0},
    {"infonce_coef": 0.03},
    {"infonce_coef": 0.3},
    {"infonce_coef": 1.0},
    {"critic": "bilinear"},
    {"critic": "mlp"},
    {"n_pairs": 64},
    {"n_pairs": 128},
    {"horizons": [8]},
    {"horizons": [4, 8]},
]
UNTRAINED = "untrained encoder"
N_ENVS = 8

# Bytes of the RAM that hold what moves: Anand et al. 2019, AtariARI.
RAM = {
    "pong": {"ball_x": 49, "ball_y": 54, "player_y": 51, "enemy_y": 50},
    "breakout": {"ball_x": 99, "ball_y": 101, "player_x": 72},
}
ENV_IDS = {"pong": "PongNoFrameskip-v4", "breakout": "BreakoutNoFrameskip-v4"}


def name_of(change: dict[str, Any]) -> str:
    """Return how the table calls a change."""
    return ", ".join(f"{key}={value}" for key, value in change.items()) or "base"


def collect(
    game: str, seed: int, n_steps: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Play at random; return stacks [n_steps, 4, 84, 84] and RAM [n_steps, V]."""
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

    env = VecTransposeImage(
        VecFrameStack(make_atari_env(ENV_IDS[game], n_envs=1, seed=seed), n_stack=4)
    )
    emulator = env.get_attr("unwrapped")[0].ale
    rng = np.random.default_rng(seed)
    addresses = list(RAM[game].values())
    observations, ram = [], []
    n_actions = int(env.action_space.n)  # type: ignore[attr-defined]
    env.reset()
    for _ in range(n_steps):
        observation, _, done, _ = env.step(rng.integers(n_actions, size=1))
        if not done[0]:  # the observation is then the next episode's, the RAM too
            observations.append(np.asarray(observation)[0].copy())
            ram.append(emulator.getRAM()[addresses])
    env.close()
    return np.stack(observations), np.stack(ram)


@torch.no_grad()
def features_of(extractor: Any, observations: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return features [K, D] of the frozen encoder, in float64."""
    extractor.eval()
    batches = torch.split(torch.as_tensor(observations), 256)
    return torch.cat([extractor(batch.float() / 255) for batch in batches]).double()


def held_out_r2(
    train: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Return R^2 [V] on `test` of a ridge regression fitted to `train`, features standardised.

    The penalty is a tenth of the number of examples; less is unstable even for untrained encoders.
    """
    (features, targets), (test_features, test_targets) = train, test
    mean, std = features.mean(0), features.std(0).clamp_min(1e-8)
    x, x_test = (features - mean) / std, (test_features - mean) / std
    centre = targets.mean(0)
    gram = x.T @ x + 0.1 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.T @ (targets - centre))
    error = (test_targets - centre - x_test @ weights).square().sum(0)
    spread = (test_targets - test_targets.mean(0)).square().sum(0)
    r2: torch.Tensor = 1 - error / spread
    return r2


def build(game: str, seed: int, settings: dict[str, Any]) -> Any:
    """Return RL Zoo's PPO for Atari with the loss."""
    from stable_baselines3 import PPO

    from rl_infonce import InfoNCEExtractor, make_atari_vec_env
    from rl_infonce.training.rl_zoo import constant_ppo

    policy_kwargs = {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": {"pairs_from": "buffer", **settings},
        "net_arch": [],
    }
    return PPO(
        "CnnPolicy",
        make_atari_vec_env(game, n_envs=N_ENVS, seed=seed),
        **constant_ppo(),
        policy_kwargs=policy_kwargs,
        seed=seed,
    )


def run(
    game: str, seed: int, settings: dict[str, Any], n_steps: int, n_probe_steps: int
) -> dict[str, Any]:
    """Train, probe, and return what was found."""
    model = build(game, seed, settings)
    start = time.perf_counter()
    if n_steps:
        model.learn(n_steps)
    seconds = time.perf_counter() - start
    extractor: Any = model.policy.features_extractor
    halves = []
    for probe_seed in (1001, 2002):  # other episodes than those trained on, and than each other
        observations, ram = collect(game, probe_seed, n_probe_steps)
        halves.append((features_of(extractor, observations), torch.as_tensor(ram).double()))
    folds = torch.stack([held_out_r2(halves[0], halves[1]), held_out_r2(halves[1], halves[0])])
    r2 = folds.clamp_min(0).mean(0)  # below 0, a probe knows nothing either
    return {
        "game": game,
        "seed": seed,
        "settings": settings,
        "n_steps": n_steps,
        "seconds": seconds,
        "r2": dict(zip(RAM[game], r2.tolist(), strict=True)),
        "mean_r2": float(r2.mean()),
        "infonce": {
            tag: model.logger.name_to_value.get(f"infonce/{tag}", extractor.last_infonce.get(tag))
            for tag in extractor.last_infonce
        },
    }


def run_all(output: Path, seeds: list[int], n_steps: int, n_probe_steps: int) -> None:
    """Run every arm that has no result yet."""
    output.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for game in RAM:
            for change in [None, *CHANGES]:
                arm = UNTRAINED if change is None else name_of(change)
                path = output / f"{game}-{seed}-{arm.replace(' ', '_')}.json"
                if path.exists():
                    continue
                found = run(
                    game,
                    seed,
                    BASE | (change or {}),
                    0 if change is None else n_steps,
                    n_probe_steps,
                )
                path.write_text(json.dumps({"arm": arm, **found}, indent=2) + "\n")
                print(game, seed, arm, round(found["mean_r2"], 3), flush=True)


def table(output: Path) -> str:
    """Return the table of all results in Markdown: mean R^2 over seeds (lowest to highest)."""
    runs = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    arms = [UNTRAINED, *(name_of(change) for change in CHANGES)]
    rows = []
    for arm in arms:
        cells = [arm]
        for game in RAM:
            scores = [r["mean_r2"] for r in runs if r["arm"] == arm and r["game"] == game]
            cells.append(
                f"{statistics.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})"
                if scores
                else "-"
            )
        speeds = [r["n_steps"] / r["seconds"] for r in runs if r["arm"] == arm and r["n_steps"]]
        cells.append(f"{statistics.median(speeds):.0f}" if speeds else "-")
        rows.append(cells)
    return markdown_table(["change", *RAM, "steps/s"], rows)


def main() -> None:
    """Parse, run or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of one JSON per run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=10_240)
    parser.add_argument("--probe-steps", type=int, default=4_096)
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    if not args.table:
        run_all(args.output, args.seeds, args.steps, args.probe_steps)
    print(table(args.output))


if __name__ == "__main__":
    main()
