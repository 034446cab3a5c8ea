from pathlib import Path

import numpy as np
import pytest

from rl_infonce.atari import decode
from tests.experiments.loading import load

pytestmark = [pytest.mark.atari, pytest.mark.slow]


@pytest.mark.thorough
def test_every_arm_runs_and_the_table_holds_their_medians() -> None:
    collect_speed = load("benchmarks/collect_speed.py")
    args = collect_speed.Args(games=("pong",), n_steps=16, n_repetitions=1)
    summary = collect_speed.compare(args)
    speeds = summary["steps_per_second"]["pong"]
    assert set(speeds) == {"gymnasium", "emulator", "one_worker", "collect"}
    assert all(speed["lowest"] <= speed["median"] <= speed["highest"] for speed in speeds.values())
    ratio = speeds["collect"]["median"] / speeds["gymnasium"]["median"]
    assert collect_speed.table(summary).endswith(f" | {ratio:.1f} |")


def test_the_gymnasium_arm_saves_what_collect_does(tmp_path: Path) -> None:
    collect_speed = load("benchmarks/collect_speed.py")
    collect_speed.collect_with_gymnasium("pong", 40, tmp_path)
    columns = {path.stem: np.load(path) for path in tmp_path.glob("*.npy")}
    assert columns["screen"].shape == (40, 210, 160)
    assert columns["agent"].shape == (40, 84, 84)
    assert columns["episode_ids"].shape == (40,)
    assert len(np.unique(decode(columns["ram"], "pong")["player_y"])) > 5
