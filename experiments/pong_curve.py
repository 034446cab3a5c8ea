"""Does the default loss learn on Pong? Loss against log N, accuracy against both overlap floors.

Trains PPO with `InfoNCEExtractor()` as it comes, which takes pairs of RL's own minibatch, with
pairs that are drawn, and as a control with positives that are shuffled among the anchors, so that
there is no time to find. Writes one CSV per run and draws the figure. As the arms contrast with
different numbers of candidates, trained encoders are also measured on 32 pairs that are drawn from
their last rollout, shuffled for the control.

    python experiments/pong_curve.py --output experiments/results/pong_curve
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import configure

from rl_infonce import InfoNCEExtractor, make_atari_vec_env
from rl_infonce.files.durable import replace_json, replace_text
from rl_infonce.report.table import markdown_table
from rl_infonce.training.rl_zoo import constant_ppo

COLUMNS = ("loss", "mi_ceiling", "accuracy_k4", "floor_pixels_k4", "floor_random_k4")
STEPS = "time/total_timesteps"
N_ENVS, N_DRAWS = 8, 64
ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "drawn": {"pairs_from": "buffer"},
    "shuffled time": {"positives": "shuffled"},
}
COLOURS = {"default": "C0", "shuffled time": "C3"}


def train(arm: str, seed: int, n_steps: int, path: Path) -> None:
    """Train one run; leave its curves in a CSV file, and what it retrieves in the end beside it."""
    model = PPO(
        "CnnPolicy",
        make_atari_vec_env("pong", n_envs=N_ENVS, seed=seed),
        **constant_ppo(),
        policy_kwargs={
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": ARMS[arm],
        },
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        model.learn(n_steps)
        replace_json(path.with_suffix(".json"), retrieval(model))
        model.logger.close()
        logged = reduced(Path(folder) / "progress.csv")
        replace_text(path, logged)  # last and in one move, as it says that the run is done


def retrieval(model: PPO) -> dict[str, float]:
    """Return loss and accuracy of a trained model, mean of pairs that are drawn many times."""
    extractor: Any = model.policy.features_extractor
    with torch.no_grad():
        drawn = [extractor.infonce_loss(extractor.experience()) for _ in range(N_DRAWS)]
    return {
        "loss": fmean(float(each.loss) for each in drawn),
        "accuracy": fmean(float(each.accuracy.mean()) for each in drawn),
        "n_candidates": drawn[0].scores.shape[-1],
    }


def read(path: Path) -> dict[str, Any]:
    """Return step and `COLUMNS` as arrays, without the rows that have no loss yet.

    A minibatch is not compared with the floors in every rollout, which leaves NaN.
    """
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("infonce/loss")]
    curves = {
        name: np.array([float(row[f"infonce/{name}"] or "nan") for row in rows]) for name in COLUMNS
    }
    return {"step": np.array([int(row[STEPS]) for row in rows]), **curves}


def reduced(path: Path) -> str:
    """Return the columns of a CSV file that are drawn, as such a file."""
    curves = read(path)
    rows = [[STEPS, *(f"infonce/{name}" for name in COLUMNS)]]
    for index, step in enumerate(curves["step"]):
        rows.append([str(step), *(f"{curves[name][index]:.4f}" for name in COLUMNS)])
    return "".join(f"{','.join(row)}\n" for row in rows)


def draw(output: Path) -> None:
    """Draw the default and the control, which have as many candidates, into `pong_curve.png`."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for path in sorted(output.glob("*.csv")):
        arm, seed = path.stem.rsplit("-", 1)
        curves = read(path)
        label = arm.replace("_", " ")
        if label not in COLOURS:
            continue
        colour = COLOURS[label]
        left.plot(curves["step"], curves["loss"], colour, label=f"{label}, seed {seed}", lw=1)
        right.plot(curves["step"], curves["accuracy_k4"], colour, lw=1)
        if label == "default":
            for floor, of_floor in (("floor_pixels_k4", "C1"), ("floor_random_k4", "C2")):
                known = ~np.isnan(curves[floor])
                right.plot(curves["step"][known], curves[floor][known], of_floor, lw=0.7)
            left.plot(curves["step"], curves["mi_ceiling"], "k:", lw=1)
    left.set(xlabel="agent steps", ylabel="InfoNCE loss (nats)", ylim=(0, None), title="Loss")
    left.text(0.98, 0.93, "dotted: log N", transform=left.transAxes, ha="right")
    left.legend(fontsize=7)
    right.set(xlabel="agent steps", ylim=(0, 1), title="Retrieval accuracy, horizon 4")
    handles = [Line2D([], [], color=f"C{i}") for i in (0, 1, 2, 3)]
    names = ["learned", "floor: raw pixels", "floor: random encoder", "control: shuffled time"]
    right.legend(handles, names, fontsize=7, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.09))
    figure.savefig(output / "pong_curve.png", dpi=150)


def end_of(curve: Any, last: int) -> float:
    """Return the mean of the numbers in the last rows of a curve, or else its last number."""
    numbers = curve[-last:] if np.isfinite(curve[-last:]).any() else curve[np.isfinite(curve)][-1:]
    return float(np.nanmean(numbers))


def table(output: Path) -> str:
    """Return, in Markdown, means of the last tenth of every run's rollouts, and the retrieval."""
    last_tenths, after = [], []
    for path in sorted(output.glob("*.csv")):
        run = path.stem.replace("_", " ").replace("-", ", seed ")
        curves = read(path)
        last = len(curves["step"]) // 10 + 1
        ends = [f"{end_of(curves[name], last):.2f}" for name in COLUMNS]
        last_tenths.append([run, *ends])
        found = json.loads(path.with_suffix(".json").read_text())
        numbers = (f"{found[name]:.2f}" for name in ("loss", "accuracy"))
        after.append([run, str(found["n_candidates"]), *numbers])
    retrieved = markdown_table(["after training", "candidates", "loss", "accuracy"], after)
    return f"{markdown_table(['run', *COLUMNS], last_tenths)}\n\n{retrieved}"


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of curves and figure")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--torch-threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.torch_threads)
    args.output.mkdir(parents=True, exist_ok=True)
    for arm in ARMS:
        for seed in args.seeds:
            path = args.output / f"{arm.replace(' ', '_')}-{seed}.csv"
            if not path.exists():
                train(arm, seed, args.steps, path)
    draw(args.output)
    print(table(args.output))


if __name__ == "__main__":
    main()
