"""What does PPO make of a pretrained encoder that it may not change?

A study is a TOML file: games, seeds, steps, and the form of the encoder. For each game and seed, an
encoder of what agents see is pretrained by ST-DIM on frames of a random agent, and PPO trains on
top of it: frozen, fine-tuned, and beside it on a frozen untrained encoder and from scratch, all of
the same form. Where that form is not NatureCNN, `nature` is PPO from scratch with NatureCNN. No arm
has an auxiliary loss. With a table [probe], encoders that PPO trained are measured and probed at
the end as in alive_encoders.py. All stages resume, and refuse what was made with other settings;
several processes may share the folders, and every process has one thread.

    python experiments/frozen_ppo.py train experiments/frozen_ppo.toml --runs RUNS --output OUT
    python experiments/frozen_ppo.py table --output OUT
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from alive_encoders import by_seed, forms_table, measured, plan_of, probed
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.atari.human_scores import human_scores
from rl_infonce.checks import differences
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.files.durable import replace_text
from rl_infonce.networks.encoder_file import load_encoder, read_header
from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.report.curves import area_under_curve, final_return
from rl_infonce.report.return_tables import comparison_table
from rl_infonce.report.table import markdown_table, to_markdown
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.software import software
from rl_infonce.training.atari_encoder import pretrain_encoder
from rl_infonce.training.make_agent import make_agent

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

N_ENVS = 8
ARMS = ("nature", "scratch", "frozen_untrained", "frozen", "fine_tuned")
"""Each is compared with some that stand before it."""
PRETRAINED = ("frozen", "fine_tuned")
AGAINST = ("nature", "scratch", "frozen_untrained")
LAST = 0.2
"""Share of a training whose returns are its end."""


class Study(NamedTuple):
    """What is trained.

    Attributes:
        games: Their names.
        seeds: Of encoders and agents alike.
        n_steps: Of each agent.
        budget: How long an encoder is pretrained.
        n_frames: Number of frames on which it is.
        form: What differs from NatureCNN, for all arms but `nature`.
        probe: Settings of the probes of a sweep, or none.
    """

    games: tuple[str, ...]
    seeds: tuple[int, ...]
    n_steps: int
    budget: str
    n_frames: int
    form: dict[str, Any]
    probe: dict[str, Any] | None = None

    def form_of(self, arm: str) -> dict[str, Any]:
        """Return what differs from NatureCNN in an arm."""
        return {} if arm == "nature" else self.form

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms, but `nature` where `scratch` is the same."""
        return ARMS if self.form else ARMS[1:]


class Returns(BaseCallback):
    """Notes the step and the return of every game that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        self.found += [
            (self.num_timesteps, info["episode"]["r"])
            for info in self.locals["infos"]
            if "episode" in info
        ]
        return True


def read_study(path: Path) -> Study:
    """Return the study of a file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    games, seeds, form = (found.pop(name, {}) for name in ("games", "seeds", "form"))
    return Study(tuple(games), tuple(seeds), form=form, **found)


# -- training --------------------------------------------------------------------------------------


def pretrained(study: Study, game: str, seed: int, runs: Path) -> Path:
    """Return the file of an encoder, pretrained by the first process that needs it.

    Raises:
        ValueError: If the file that is there was made with other settings.
    """
    plan = plan_of(game, seed, study.budget, study.n_frames, **study.form)
    folder = runs / "encoders" / f"{game}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "encoder.safetensors"
    while not path.exists():
        with claimed(path, folder) as is_missing:
            if is_missing:
                pretrain_encoder(plan, folder)
        time.sleep(0 if path.exists() else 10)
    made_of = {**plan.about(), "budget": study.budget, "seed": seed}
    check_same(path, read_header(path)["provenance"], made_of, "--runs")
    return path


def check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], flag: str) -> None:
    """Raise unless a file says that it was made as it would be now."""
    if listed := differences(found, wanted):
        raise ValueError(
            f"Expected {path} to be made with these settings, got {listed}. Choose another {flag}."
        )


def build(
    study: Study, game: str, arm: str, seed: int, encoder: Path | None = None
) -> BaseAlgorithm:
    """Return the untrained model of an arm."""
    start: Any = None if encoder is None else load_encoder(encoder)
    if arm == "frozen_untrained":
        generator = torch.Generator().manual_seed(seed)
        start = PixelEncoder((4, 84, 84), generator=generator, form=EncoderForm(**study.form))
    return make_agent(
        "ppo",
        game,
        n_timesteps=study.n_steps,
        n_envs=N_ENVS,
        seed=seed,
        device="cpu",
        extractor={"infonce_coef": 0.0, **(study.form_of(arm) if start is None else {})},
        encoder=start,
        freeze=arm.startswith("frozen"),
    )


def train(study: Study, runs: Path, output: Path) -> None:
    """Train every run that has no file yet.

    Raises:
        ValueError: If a file is of another study.
    """
    for seed, game, arm in product(study.seeds, study.games, study.arms):
        path = output / f"{game}-{arm}-{seed}.json"
        made_of = {"objective": "stdim", "budget": study.budget, "n_frames": study.n_frames}
        settings = {
            "game": game,
            "n_steps": study.n_steps,
            "form": study.form_of(arm),
            "pretraining": made_of if arm in PRETRAINED else None,
            **({"probe": study.probe} if study.probe else {}),
        }
        if path.exists():
            check_same(path, json.loads(path.read_text()), settings, "--output")
        with claimed(path, runs) as is_missing:
            if is_missing:
                encoder = pretrained(study, game, seed, runs) if arm in PRETRAINED else None
                found = played(study, game, arm, seed, encoder, runs)
                content = {"arm": arm, "seed": seed, **settings, **found}
                replace_text(path, json.dumps(content) + "\n")
                print(path, flush=True)


def played(
    study: Study, game: str, arm: str, seed: int, encoder: Path | None, runs: Path
) -> dict[str, Any]:
    """Train a model; return how that went, from which encoder, and what it made of the encoder."""
    model, returns = build(study, game, arm, seed, encoder), Returns()
    start = time.perf_counter()
    model.learn(study.n_steps, callback=returns)
    seconds = round(time.perf_counter() - start, 1)
    found = {}
    if study.probe and not arm.startswith("frozen"):
        folder = runs / "trained" / f"{game}-{arm}-{seed}"
        found = features(study.probe, game, seed, model, folder)
    return {
        "encoder_sha256": encoder and sha256_of_file(encoder),
        "seconds": seconds,
        "returns": returns.found,
        **found,
        **software(),
    }


def features(
    probe: Mapping[str, Any], game: str, seed: int, model: BaseAlgorithm, folder: Path
) -> dict[str, Any]:
    """Return the measures and the probes' F1 of a trained model's encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "model.zip"
    model.save(saved)
    return {
        **measured(game, seed, probe["n_frames"], read_encoder(saved)),
        "f1": probed(game, seed, probe, saved),
    }


# -- tables ----------------------------------------------------------------------------------------

Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]


def read_runs(output: Path) -> Runs:
    """Return what all files say, by game, arm and seed.

    Raises:
        ValueError: If they differ in steps, or the two arms of a game and seed that have an encoder
            in it, or two are of one run.
    """
    contents = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    steps = {each["n_steps"] for each in contents}
    encoders: dict[tuple[str, int], set[str]] = {}
    for each in contents:
        if each["encoder_sha256"] is not None:
            encoders.setdefault((each["game"], each["seed"]), set()).add(each["encoder_sha256"])
    if len(steps) > 1 or any(len(found) > 1 for found in encoders.values()):
        raise ValueError(
            f"Expected the files of {output} to have one number of steps, and one encoder for each "
            f"game and seed, got {sorted(steps)} and {encoders}. Keep the runs of another table in "
            "another folder."
        )
    runs: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for each in contents:
        run = (each["game"], each["arm"], each["seed"])
        if run in runs:
            raise ValueError(
                f"Expected {output} to hold one file of each run, got two of "
                f"{', '.join(map(str, run))}. Keep one of them in another folder."
            )
        runs[run] = each
    return runs


def scored(runs: Runs, measure: str) -> dict[str, dict[str, dict[int, float]]]:
    """Return arm -> game -> seed -> number: "seconds", "end", or "area", the mean over a budget."""
    found: dict[str, dict[str, dict[int, float]]] = {arm: {} for arm in ARMS}
    for (game, arm, seed), content in runs.items():
        found[arm].setdefault(game, {})[seed] = score(content, measure)
    return found


def score(content: Mapping[str, Any], measure: str) -> float:
    """Return one number of a run."""
    if measure == "seconds":
        return float(content["seconds"])
    steps, returns = zip(*content["returns"], strict=True)
    n_steps = content["n_steps"]
    done = {"n_steps_done": max(n_steps, *steps)}
    if measure == "end":
        return final_return(steps, returns, n_steps, share=LAST, **done)
    return area_under_curve(steps, returns, n_steps, **done)


def table(output: Path, rng: np.random.Generator) -> str:
    """Return the returns of each game and arm, and what arms differ by, in human scores."""
    runs = read_runs(output)
    seconds, ends, areas = (scored(runs, each) for each in ("seconds", "end", "area"))
    rows = [
        [game, arm, shown(areas[arm][game]), shown(ends[arm][game]), minutes(seconds[arm][game])]
        for game in sorted({game for game, _, _ in runs})
        for arm in ARMS
        if game in ends[arm]
    ]
    header = ["game", "arm", "mean return over the budget", "in its last fifth", "minutes"]
    tables = [markdown_table(header, rows)]
    for against in AGAINST:
        others = [arm for arm in ARMS[ARMS.index(against) + 1 :] if areas[arm]]
        pairs = {arm: (areas[arm], areas[against]) for arm in others}
        if pairs and areas[against]:
            compared = comparison_table(pairs, against, scales=human_scores(), rng=rng)
            tables.append(to_markdown(compared))
    return "\n\n".join([*tables, *features_tables(runs, rng)])


def features_tables(runs: Runs, rng: np.random.Generator) -> list[str]:
    """Return what PPO made of the encoders that were probed, and how much more they know."""
    found = [run for run in runs.values() if "measures" in run]
    arms = [arm for arm in ARMS if any(run["arm"] == arm for run in found)]
    if not arms:
        return []
    f1 = {
        (arm, of): by_seed(found, arm, "f1", "converged", of)
        for arm, of in product(arms, ("trained", "untrained"))
    }
    compared = {
        "untrained of the same form": {
            arm: (f1[arm, "trained"], f1[arm, "untrained"]) for arm in arms
        },
        arms[0]: {arm: (f1[arm, "trained"], f1[arms[0], "trained"]) for arm in arms[1:]},
    }
    tables = (
        comparison_table(pairs, f"{against}: mean F1, converged, PPO", scales=None, rng=rng)
        for against, pairs in compared.items()
        if pairs
    )
    return [forms_table("agents", found, arms), *map(to_markdown, tables)]


def shown(by_seed: Mapping[int, float]) -> str:
    """Return the mean, the lowest and the highest of some seeds."""
    values = list(by_seed.values())
    return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def minutes(by_seed: Mapping[int, float]) -> str:
    """Return the median time of some runs."""
    return f"{median(by_seed.values()) / 60:.0f}"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    stages = parser.add_subparsers(dest="stage", required=True)
    training = stages.add_parser("train")
    training.add_argument("study", type=Path)
    training.add_argument("--runs", type=Path, default=Path("runs"))
    for each in (training, stages.add_parser("table")):
        each.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.stage == "table":
        print(table(arguments.output, np.random.default_rng(0)))
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train(read_study(arguments.study), arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
