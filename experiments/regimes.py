"""Where does the loss raise the return? Arms of one algorithm on tasks, over many seeds.

A grid is a TOML file that says all that is trained: tasks, algorithm, hyperparameters, arms, seeds
and steps. Several processes may share the folders; what is there is not trained again.

    python experiments/regimes.py train experiments/regimes/GRID.toml --runs RUNS --output OUT
    python experiments/regimes.py table experiments/regimes/GRID.toml --output OUT
    python experiments/regimes.py random experiments/regimes/*.toml
    python experiments/regimes.py map experiments/regimes/*_distractors.toml --output RESULTS
    python experiments/regimes.py tried experiments/regimes/*_screen.toml --output RESULTS

An arm is `extractor = false` for stock Stable-Baselines3, or arguments of `InfoNCEExtractor`.
Scores are areas under the training curve: the mean return over the budget, in units of the task's
scale, where 0 is a random agent and 1 is the first arm on the task without distractors. The map has
one row for each grid, whose runs lie in RESULTS under its name. What was tried is counted over all
grids of an algorithm and a kind of noise: arms of other names or settings are other forms.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rl_infonce import InfoNCEExtractor
from rl_infonce.files.durable import replace_text
from rl_infonce.report.aggregates import mean
from rl_infonce.report.bootstrap import bootstrap_difference
from rl_infonce.report.curves import return_curve
from rl_infonce.report.statistics import Interval, t_difference, t_interval
from rl_infonce.runs.claim import claimed
from rl_infonce.runs.run_directory import software

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

runpy.run_path(str(Path(__file__).with_name("distractors.py")))  # registers its ids

N_RANDOM_EPISODES = 50
RANDOM_RETURNS = Path(__file__).with_suffix("") / "random_returns.json"
N_WINDOWS = 100
LOSS, BASELINE, PLACEBO = "infonce", "baseline", "placebo"
NOISES = {"White": "white noise", "Drifting": "noise that drifts"}
"""Words in the ids of tasks, by distractors.py."""
FEWEST_SEEDS = 5
"""Fewer have no interval, but a lowest and a highest score."""
Runs: TypeAlias = dict[tuple[str, str], dict[int, dict[str, Any]]]
"""Task and arm -> seed -> what was written of the run."""


class Grid(NamedTuple):
    """What is trained.

    Attributes:
        algorithm: Name of its class, in Stable-Baselines3 or sb3-contrib.
        n_timesteps: Budget of a run.
        n_envs: Environments at once.
        normalize: Whether `VecNormalize` stands between environments and agent.
        tasks: Ids.
        seeds: Seeds of every task and arm.
        hyperparameters: Arguments of the algorithm.
        arms: Name to arguments of the extractor, or to `extractor = false`.
        unit: Task to the id without distractors, whose first arm has a score of 1.
        regime: What the grid is about, in words for the map.
    """

    algorithm: str
    n_timesteps: int
    n_envs: int
    normalize: bool
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    hyperparameters: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    unit: dict[str, str]
    regime: str


def read_grid(path: Path) -> Grid:
    """Return the grid of a file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return Grid(
        algorithm=found["algorithm"],
        n_timesteps=found["n_timesteps"],
        n_envs=found.get("n_envs", 1),
        normalize=found.get("normalize", False),
        tasks=tuple(found["tasks"]),
        seeds=tuple(found["seeds"]),
        hyperparameters=found.get("hyperparameters", {}),
        arms=found["arm"],
        unit=found.get("unit", {}),
        regime=found.get("regime", path.stem),
    )


def cells(grid: Grid) -> list[tuple[int, str, str]]:
    """Return seed, task and arm of every run: all arms of a seed before the next seed."""
    planned = list(product(grid.seeds, grid.tasks, grid.arms))
    first = next(iter(grid.arms))
    units = [
        (seed, task, first) for seed in grid.seeds for task in dict.fromkeys(grid.unit.values())
    ]
    return planned + [each for each in units if each not in planned]


def make_model(grid: Grid, task: str, arm: Mapping[str, Any], seed: int) -> BaseAlgorithm:
    """Return an untrained agent, with an environment that keeps its episodes."""
    env: VecEnv = make_vec_env(task, n_envs=grid.n_envs, seed=seed)
    if grid.normalize:
        env = VecNormalize(env, gamma=grid.hyperparameters.get("gamma", 0.99))
    settings = dict(grid.hyperparameters)
    if "action_noise" in settings:
        n_actions = int(np.prod(env.action_space.shape or ()))
        deviation = np.full(n_actions, settings.pop("action_noise"))
        settings["action_noise"] = NormalActionNoise(np.zeros(n_actions), deviation)
    policy_kwargs = dict(settings.pop("policy_kwargs", {}))
    if arm.get("extractor", True):
        policy_kwargs |= {
            "features_extractor_class": InfoNCEExtractor,
            "features_extractor_kwargs": {n: v for n, v in arm.items() if n != "extractor"},
        }
    known = vars(stable_baselines3) | vars(sb3_contrib)
    model: BaseAlgorithm = known[grid.algorithm](
        "MlpPolicy", env, policy_kwargs=policy_kwargs, seed=seed, device="cpu", **settings
    )
    return model


def train(grid: Grid, task: str, arm: str, seed: int) -> dict[str, Any]:
    """Return the mean return in each hundredth of a training, and the last diagnostics."""
    model = make_model(grid, task, grid.arms[arm], seed)
    start, processor = time.perf_counter(), time.process_time()
    model.learn(grid.n_timesteps)
    seconds = [time.perf_counter() - start, time.process_time() - processor]
    env = model.get_env()
    assert env is not None  # noqa: S101 (it was given one)
    episodes = episodes_of(env)
    extractors = [each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor)]
    return {
        "algorithm": grid.algorithm,
        "task": task,
        "arm": arm,
        "settings": grid.arms[arm],
        "seed": seed,
        "n_steps": grid.n_timesteps,
        "n_steps_done": model.num_timesteps,
        "seconds": round(seconds[0], 1),
        "processor_seconds": round(seconds[1], 1),
        "n_episodes": len(episodes),
        "curve": curve_of(episodes, grid.n_timesteps, model.num_timesteps),
        "last_infonce": extractors[0].last_infonce if extractors else {},
        **software(),
    }


def episodes_of(env: VecEnv) -> list[tuple[int, float]]:
    """Return the step of all environments together at which each episode ended, and its return."""
    lengths, returns = env.env_method("get_episode_lengths"), env.env_method("get_episode_rewards")
    return sorted(
        (int(end) * env.num_envs, float(value))
        for own_lengths, own_returns in zip(lengths, returns, strict=True)
        for end, value in zip(np.cumsum(own_lengths), own_returns, strict=True)
    )


def curve_of(
    episodes: list[tuple[int, float]], n_steps: int, n_steps_done: int
) -> list[float | None]:
    """Return the mean return in each hundredth of the budget; None before the first episode ends.

    Raises:
        ValueError: If no episode ended.
    """
    if not episodes:
        raise ValueError(f"Expected an episode to end within {n_steps} steps, got none.")
    steps, returns = zip(*episodes, strict=True)
    curve = return_curve(steps, returns, n_steps, N_WINDOWS, n_steps_done=n_steps_done)
    return [None if np.isnan(each) else round(float(each), 2) for each in curve]


def area(curve: list[float | None]) -> float:
    """Return the mean of a curve whose unknown beginning has the first value that is known."""
    known = [each for each in curve if each is not None]
    return float(np.mean([known[0]] * (len(curve) - len(known)) + known))


def ending(curve: list[float | None]) -> float:
    """Return the mean of the last tenth of a curve."""
    return area(curve[-(len(curve) // 10) :])


def train_all(grid: Grid, runs: Path, output: Path) -> None:
    """Train every run that has no file yet."""
    for seed, task, arm in cells(grid):
        path = output / f"{task}-{arm}-{seed}.json"
        with claimed(path, runs) as is_missing:
            if is_missing:
                replace_text(
                    path, json.dumps(train(grid, task, arm, seed), separators=(",", ":")) + "\n"
                )
                print(path, flush=True)


def random_return(task: str) -> float:
    """Return the mean return of a random agent, from its file where the task stands there."""
    known: dict[str, float] = json.loads(RANDOM_RETURNS.read_text(encoding="utf-8"))
    return known[task] if task in known else played_at_random(task)


def played_at_random(task: str) -> float:
    """Return the mean return of episodes of uniform actions, always the same ones."""
    env = gym.make(task)
    env.action_space.seed(0)
    total = 0.0
    for episode in range(N_RANDOM_EPISODES):
        env.reset(seed=episode)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, is_over = total + float(reward), terminated or truncated
    return total / N_RANDOM_EPISODES


def note_random_returns(grids: list[Grid]) -> None:
    """Add to the file what a random agent returns on the tasks of some grids."""
    tasks = {task for grid in grids for task in (*grid.tasks, *grid.unit.values())}
    known = json.loads(RANDOM_RETURNS.read_text(encoding="utf-8"))
    known |= {task: played_at_random(task) for task in tasks - set(known)}
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    replace_text(RANDOM_RETURNS, text)


def runs_of(grid: Grid, output: Path) -> Runs:
    """Return task and arm -> seed -> what was written of the run."""
    found: Runs = {}
    for seed, task, arm in cells(grid):
        path = output / f"{task}-{arm}-{seed}.json"
        if not path.exists():
            continue
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["n_steps"] != grid.n_timesteps or run["settings"] != grid.arms[arm]:
            raise ValueError(f"Expected {path} to be of this grid, got other steps or settings.")
        found.setdefault((task, arm), {})[seed] = run
    return found


def measured(
    runs: Runs, measure: Callable[[list[float | None]], float] = area
) -> dict[tuple[str, str], dict[int, float]]:
    """Return task and arm -> seed -> what is measured of the curve."""
    return {
        cell: {seed: measure(run["curve"]) for seed, run in own.items()}
        for cell, own in runs.items()
    }


def cost(runs: Runs, task: str) -> float | None:
    """Return how many times the baseline's processor time the loss takes; None without runs.

    It is the median over pairs of a seed, as other programs ran beside these.
    """
    ours, theirs = runs.get((task, LOSS), {}), runs.get((task, BASELINE), {})
    ratios = [
        ours[seed]["processor_seconds"] / theirs[seed]["processor_seconds"]
        for seed in ours.keys() & theirs.keys()
    ]
    return float(np.median(ratios)) if ratios else None


def at_equal_time(grid: Grid, runs: Runs) -> Interval | None:
    """Return how far the loss is above the baseline over the time of the faster one of both."""
    found = measured(runs)
    scale = scales(grid, found)
    for task in grid.tasks:
        times = cost(runs, task)
        if times is not None:
            slower, share = (LOSS, 1 / times) if times > 1 else (BASELINE, times)
            within = max(1, round(share * N_WINDOWS))
            own = runs[task, slower]
            found[task, slower] = {seed: area(own[seed]["curve"][:within]) for seed in own}
    return difference(grid, found, scale, LOSS, BASELINE)


class OnTask(NamedTuple):
    """What the loss does on one task, and its processor time over that of the baseline."""

    over_baseline: Interval | None
    over_placebo: Interval | None
    cost: float | None


def on_tasks(grid: Grid, runs: Runs) -> dict[str, OnTask]:
    """Return what the loss does on each task alone."""
    found = measured(runs)
    scale = scales(grid, found)

    def over(task: str, arm: str) -> Interval | None:
        return difference(grid._replace(tasks=(task,)), found, scale, LOSS, arm)

    return {
        task: OnTask(over(task, BASELINE), over(task, PLACEBO), cost(runs, task))
        for task in grid.tasks
    }


def scales(grid: Grid, found: Mapping[tuple[str, str], Mapping[int, float]]) -> dict[str, Any]:
    """Return task -> (random return, return that counts as 1), the mean of the unit's runs."""
    first = next(iter(grid.arms))
    scale = {}
    for task in grid.tasks:
        unit = found.get((grid.unit.get(task, task), first), {})
        if unit:
            scale[task] = random_return(task), float(np.mean(list(unit.values())))
    return scale


def table(grid: Grid, output: Path) -> str:
    """Return areas by task and arm, and the differences between arms over all tasks."""
    runs = runs_of(grid, output)
    found, endings = measured(runs), measured(runs, ending)
    scale = scales(grid, found)
    lines = [
        "| task | arm | runs | mean return over the budget | of the unit | in its last tenth |",
        "|---|---|---|---|---|---|",
    ]
    for (task, arm), own in sorted(found.items(), key=lambda each: each[0][0]):
        mean = _spread(list(own.values()))
        part = "-"
        if task in scale:
            zero, one = scale[task]
            part = f"{(float(np.mean(list(own.values()))) - zero) / (one - zero):.2f}"
        end = _spread(list(endings[task, arm].values()))
        lines.append(f"| {task} | {arm} | {len(own)} | {mean} | {part} | {end} |")
    if len(grid.seeds) < FEWEST_SEEDS:
        return "\n".join(lines) + "\n"
    lines += ["", "| arm | less arm | difference in units, all tasks |", "|---|---|---|"]
    for arm, other in product(grid.arms, grid.arms):
        if arm != other:
            interval = difference(grid, found, scale, arm, other)
            lines.append(f"| {arm} | {other} | {_told(interval)} |")
    return "\n".join(lines) + "\n"


def paired(
    grid: Grid,
    found: Mapping[tuple[str, str], Mapping[int, float]],
    scale: Mapping[str, tuple[float, float]],
    arm: str,
    other: str,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return, for each task, the scores of two arms on the seeds that both have."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for task in grid.tasks:
        first, second = found.get((task, arm), {}), found.get((task, other), {})
        seeds = sorted({*first} & {*second})
        if len(seeds) >= FEWEST_SEEDS and task in scale:
            zero, one = scale[task]
            ours[task] = [(first[seed] - zero) / (one - zero) for seed in seeds]
            theirs[task] = [(second[seed] - zero) / (one - zero) for seed in seeds]
    return ours, theirs


def difference(
    grid: Grid,
    found: Mapping[tuple[str, str], Mapping[int, float]],
    scale: Mapping[str, tuple[float, float]],
    arm: str,
    other: str,
) -> Interval | None:
    """Return the mean difference over tasks, of runs paired by seed; None without enough runs.

    The unit counts as known: what its runs scatter is in no interval.
    """
    ours, theirs = paired(grid, found, scale, arm, other)
    return t_difference(ours, theirs, paired=True) if ours else None


def ratio(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> Interval | None:
    """Return how many times the mean score over tasks is that of another arm, with its interval.

    It is a bootstrap over pairs of runs; None where a run of either arm has a score below 0.
    """
    if min(min(values) for values in [*ours.values(), *theirs.values()]) <= 0:
        return None
    rng = np.random.default_rng(0)
    of_logarithms = bootstrap_difference(
        ours, theirs, lambda scores: np.log(mean(scores)), paired=True, rng=rng, widen=True
    )
    value, low, high = np.exp(of_logarithms[:3])
    return Interval(float(value), float(low), float(high))


def effect(over_baseline: Interval | None, over_placebo: Interval | None) -> str:
    """Return in a word what the loss does: it helps if it beats baseline and placebo."""
    if over_baseline is None or over_placebo is None:
        return "missing"
    if min(over_baseline.low, over_placebo.low) > 0:
        return "helps"
    return "costs" if over_baseline.high < 0 else "undecided"


class Row(NamedTuple):
    """A regime on the map.

    Attributes:
        grid: What was trained.
        n_seeds: Seeds of the loss and of the baseline on all tasks.
        differences: Arm to what it is above the baseline.
        over: Arm to what the loss is above it.
        ratio: The loss over the baseline.
        at_equal_time: What the loss is above the baseline over equal processor time.
        on_tasks: Task to what the loss does there.
    """

    grid: Grid
    n_seeds: int
    differences: dict[str, Interval | None]
    over: dict[str, Interval | None]
    ratio: Interval | None
    at_equal_time: Interval | None
    on_tasks: dict[str, OnTask]


def row_of(grid: Grid, output: Path) -> Row:
    """Return what a confirmation with the arms `LOSS` and `BASELINE` found."""
    runs = runs_of(grid, output)
    found = measured(runs)
    scale = scales(grid, found)
    others = [arm for arm in grid.arms if arm != LOSS]
    ours, theirs = paired(grid, found, scale, LOSS, BASELINE)
    return Row(
        grid=grid,
        n_seeds=min((len(values) for values in ours.values()), default=0),
        differences={
            arm: difference(grid, found, scale, arm, BASELINE)
            for arm in grid.arms
            if arm != BASELINE
        },
        over={arm: difference(grid, found, scale, LOSS, arm) for arm in others},
        ratio=ratio(ours, theirs) if ours else None,
        at_equal_time=at_equal_time(grid, runs),
        on_tasks=on_tasks(grid, runs),
    )


def map_table(rows: list[Row]) -> str:
    """Return the map in Markdown: what the loss is above each other arm, by regime."""
    others = list(dict.fromkeys(arm for row in rows for arm in row.over))
    head = ["regime", "tasks", "seeds", *(f"over {arm}" for arm in others), "times baseline"]
    head += ["over baseline at equal time", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [
            row.grid.regime,
            ", ".join(row.grid.tasks),
            str(row.n_seeds),
            *(_told(row.over.get(arm)) for arm in others),
            "-" if row.ratio is None else _shown(row.ratio, "{:.2f}"),
            _told(row.at_equal_time),
            effect(row.over.get(BASELINE), row.over.get(PLACEBO)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tasks_table(rows: list[Row]) -> str:
    """Return in Markdown what the loss does on each task of each regime, and what it costs."""
    lines = [
        "| regime | task | over baseline | over placebo | processor time of baseline's |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        for task, each in row.on_tasks.items():
            over = f"{_told(each.over_baseline)} | {_told(each.over_placebo)}"
            times = "missing" if each.cost is None else f"{each.cost:.2f}"
            lines.append(f"| {row.grid.regime} | {task} | {over} | {times} |")
    return "\n".join(lines) + "\n"


def tried_table(grids: Mapping[str, Grid], output: Path) -> str:
    """Return how many forms of the loss some screenings tried, by algorithm and kind of noise."""
    tried: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, grid in grids.items():
        for task, arm in runs_of(grid, output / name):
            settings = grid.arms[arm]
            has_loss = settings.get("extractor", True) and settings.get("infonce_coef", 1.0) > 0
            if has_loss and settings.get("positives") != "shuffled":
                kind = next((word for word in NOISES if word in task), "")
                form = json.dumps([arm, settings], sort_keys=True)
                tried.setdefault((grid.algorithm, NOISES.get(kind, "no noise")), []).append(
                    (form, task)
                )
    lines = ["| algorithm | beside | forms of the loss | tuning tasks |", "|---|---|---|---|"]
    for (algorithm, noise), found in sorted(tried.items()):
        n_forms, tasks = len({form for form, _ in found}), sorted({task for _, task in found})
        lines.append(f"| {algorithm} | {noise} | {n_forms} | {', '.join(tasks)} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Draw how far each arm is above the baseline, with its interval, one panel for each regime."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    size = 8, 0.6 + 1.3 * len(rows)
    figure, axes = plt.subplots(
        len(rows), 1, figsize=size, layout="constrained", sharex=True, squeeze=False
    )
    for row, panel in zip(rows, axes[:, 0], strict=True):
        shown = [(arm, each) for arm, each in row.differences.items() if each is not None]
        for place, (arm, each) in enumerate(reversed(shown)):
            colour = "C0" if arm == LOSS else "0.45"
            panel.plot([each.low, each.high], [place, place], color=colour, lw=2)
            panel.plot(each.mean, place, "o", color=colour)
        panel.set_yticks(range(len(shown)), [arm.replace("_", " ") for arm, _ in reversed(shown)])
        panel.set_ylim(-0.6, len(shown) - 0.4)
        panel.axvline(0, color="0.7", lw=1, zorder=0)
        panel.set_title(row.grid.regime, fontsize=10, loc="left")
    axes[-1, 0].set_xlabel("score above the same network without the loss, 95 % intervals")
    with plt.rc_context({"svg.hashsalt": "map"}):  # the same picture has the same bytes
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _spread(values: list[float]) -> str:
    """Return the mean with its 95 % interval, or with the lowest and the highest of few runs."""
    if len(values) >= FEWEST_SEEDS:
        return _shown(t_interval(values), "{:.0f}")
    return f"{np.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def _told(interval: Interval | None) -> str:
    return "missing" if interval is None else _shown(interval, "{:+.3f}")


def _shown(interval: Interval, form: str) -> str:
    value, low, high = (form.format(each) for each in interval[:3])
    return f"{value} ({low} to {high})"


def main() -> None:
    """Parse the command line and run a stage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("train", "table", "map", "tried", "random"))
    parser.add_argument("grid", type=Path, nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of locks")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--seeds", nargs="+", type=int, help="some of the grid's seeds")
    parser.add_argument("--n-timesteps", type=int, help="another budget, to try the command")
    arguments = parser.parse_args()
    if arguments.stage == "random":
        note_random_returns([read_grid(each) for each in arguments.grid])
        return
    if arguments.stage == "map":
        rows = [row_of(read_grid(each), arguments.output / each.stem) for each in arguments.grid]
        print(map_table(rows), tasks_table(rows), sep="\n", end="")
        draw(rows, arguments.output / "map.svg")
        return
    if arguments.stage == "tried":
        grids = {each.stem: read_grid(each) for each in arguments.grid}
        print(tried_table(grids, arguments.output), end="")
        return
    grid = read_grid(*arguments.grid)
    if arguments.seeds:
        grid = grid._replace(seeds=tuple(arguments.seeds))
    if arguments.n_timesteps:
        grid = grid._replace(n_timesteps=arguments.n_timesteps)
    if arguments.stage == "table":
        print(table(grid, arguments.output), end="")
        return
    torch.set_num_threads(1)
    for folder in (arguments.runs, arguments.output):
        folder.mkdir(parents=True, exist_ok=True)
    train_all(grid, arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
