"""How many labelled agent steps per second reach the disk, with both views of each state?

Alternates three arms so that a busy moment hits all of them, and prints medians:
`gymnasium` plays the same actions in two environments, one AtariPreprocessing for each view, and
saves arrays at the end; `one_worker` and `collect` are `rl_infonce.atari.collect` with one process
and with one per core. What limits them is the emulator: `emulator` only plays, four frames a step,
nothing read and nothing written, in one process; all cores together could do that many times.

    python experiments/benchmarks/collect_speed.py --output experiments/results/collect_speed.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import AtariPreprocessing
from output import finish, machine

from rl_infonce.atari import collect
from rl_infonce.atari.emulator import FRAME_SKIP, make_ale
from rl_infonce.report.table import markdown_table

VIEW_SIZES: dict[str, tuple[int, int]] = {"screen": (160, 210), "agent": (84, 84)}  # width, height
GYMNASIUM_IDS = {"pong": "ALE/Pong-v5", "breakout": "ALE/Breakout-v5", "boxing": "ALE/Boxing-v5"}


@dataclass(frozen=True)
class Args:
    """What to measure."""

    games: tuple[str, ...] = ("pong", "breakout", "boxing")
    n_steps: int = 24_000
    n_repetitions: int = 3


def make_env(game: str, view: str) -> Any:
    """Return Gymnasium's environment with one view as observation."""
    env = gymnasium.make(GYMNASIUM_IDS[game], frameskip=1, repeat_action_probability=0.0)
    return AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=VIEW_SIZES[view])


def collect_with_gymnasium(game: str, n_steps: int, folder: Path) -> None:
    """Save both views, RAM and episode ids of seeded random play, one environment per view."""
    gymnasium.register_envs(ale_py)
    envs = {view: make_env(game, view) for view in VIEW_SIZES}
    rng = np.random.default_rng(0)
    columns: dict[str, list[npt.NDArray[Any]]] = {
        name: [] for name in (*envs, "ram", "episode_ids")
    }
    episode, is_over = -1, True
    observations: dict[str, npt.NDArray[np.uint8]] = {}
    for _ in range(n_steps):
        if is_over:
            episode += 1
            observations = {view: env.reset(seed=episode)[0] for view, env in envs.items()}
        for view, observation in observations.items():
            columns[view].append(observation.copy())
        columns["ram"].append(envs["screen"].unwrapped.ale.getRAM())
        columns["episode_ids"].append(np.array(episode))
        action = int(rng.integers(envs["screen"].action_space.n))
        results = {view: env.step(action) for view, env in envs.items()}
        observations = {view: result[0] for view, result in results.items()}
        is_over = any(result[2] or result[3] for result in results.values())
    for name, rows in columns.items():
        np.save(folder / f"{name}.npy", np.stack(rows))
    for env in envs.values():
        env.close()


def play_only(game: str, n_steps: int, _folder: Path) -> None:
    """Hold random actions for four frames each, and look at nothing but the end of the game."""
    ale = make_ale(game, seed=0)
    actions = ale.getMinimalActionSet()
    for index in np.random.default_rng(0).integers(len(actions), size=n_steps):
        for _ in range(FRAME_SKIP):
            ale.act(actions[index])
            if ale.game_over():
                ale.reset_game()


ARMS: dict[str, Callable[[str, int, Path], object]] = {
    "gymnasium": collect_with_gymnasium,
    "emulator": play_only,
    "one_worker": lambda game, n_steps, folder: collect(game, n_steps, folder=folder, n_workers=1),
    "collect": lambda game, n_steps, folder: collect(game, n_steps, folder=folder),
}


def steps_per_second(arm: str, game: str, n_steps: int) -> float:
    """Return labelled agent steps per second of one arm, until everything is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        ARMS[arm](game, n_steps, Path(folder))
        return n_steps / (time.perf_counter() - start)


def compare(args: Args) -> dict[str, Any]:
    """Return the median, lowest and highest speed of each arm and game."""
    speeds: dict[str, dict[str, list[float]]] = {game: {a: [] for a in ARMS} for game in args.games}
    for repetition in range(args.n_repetitions + 1):
        for game in args.games:
            for arm in ARMS:
                speed = steps_per_second(arm, game, args.n_steps)
                if repetition:  # the first round warms up
                    speeds[game][arm].append(speed)
    return {
        "args": asdict(args),
        "machine": machine(ale_py=ale_py.__version__),
        "steps_per_second": {
            game: {
                arm: {"median": statistics.median(s), "lowest": min(s), "highest": max(s)}
                for arm, s in arms.items()
            }
            for game, arms in speeds.items()
        },
    }


def table(summary: dict[str, Any]) -> str:
    """Return medians in Markdown, with the lowest and highest."""
    rows = []
    for game, arms in summary["steps_per_second"].items():
        cells = [
            f"{s['median']:.0f} ({s['lowest']:.0f} to {s['highest']:.0f})" for s in arms.values()
        ]
        ratio = arms["collect"]["median"] / arms["gymnasium"]["median"]
        rows.append([game, *cells, f"{ratio:.1f}"])
    return markdown_table(["game", *ARMS, "x gymnasium"], rows)


def main() -> None:
    """Parse, measure, print, and write the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", choices=GYMNASIUM_IDS, default=Args.games)
    parser.add_argument("--n-steps", type=int, default=Args.n_steps)
    parser.add_argument("--n-repetitions", type=int, default=Args.n_repetitions)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = vars(parser.parse_args())
    output = args.pop("output")
    summary = compare(Args(**args))
    finish(summary, output, table(summary))


if __name__ == "__main__":
    main()
