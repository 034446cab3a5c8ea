"""Speeds that pages state, compared with the committed runs of the benchmarks."""

import numpy as np
import pytest

from rl_infonce.nce.contrast import DEVICE_CROSSOVER, DEVICE_TILE
from tests.experiments.loading import (
    EXPERIMENTS,
    FRONT_PAGE,
    committed,
    load,
    study_page,
    study_words,
)

BENCHMARKS = {
    **dict.fromkeys(("collect_speed", "env_threads", "pretrain_speed", "vector_speed"), ("table",)),
    **dict.fromkeys(("probe_speed", "train_speed"), ("table", "limits_table")),
    "contrast_speed": ("table", "limits_table", "memory_table"),
    "contrast_tiles": ("table",),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_tables_of_speed_come_from_the_committed_run(name: str) -> None:
    script, summary = load(f"benchmarks/{name}.py"), committed(f"{name}.json")
    for table in BENCHMARKS[name]:
        assert getattr(script, table)(summary) in study_page(f"{name}.md")
    if name == "train_speed":
        assert script.table(summary) in FRONT_PAGE


AGAIN = {
    **{name: f"{name}_again.json" for name in ("collect_speed", "contrast_speed", "env_threads")},
    "vector_speed": "vector_speed_again.json",
    "pretrain_speed": "pretrain_speed_amd.json",
}


@pytest.mark.parametrize("name", AGAIN)
def test_speeds_of_the_release_stand_below_those_of_former_code(name: str) -> None:
    script, summary = load(f"benchmarks/{name}.py"), committed(AGAIN[name])
    _, _, shown = study_page(f"{name}.md").partition("## By the code of the release")
    for table in BENCHMARKS[name]:
        assert getattr(script, table)(summary) in shown
    assert summary["machine"]["git_commit"][:8] in shown


def cost_of(arm: str, name: str) -> float:
    """Return the share of the steps per second that a loss takes in a committed run."""
    off = f"{arm.partition('_')[0]}_off"
    runs = committed(name)["runs"]
    return 1 - float(
        np.median([r[arm]["steps_per_second"] / r[off]["steps_per_second"] for r in runs])
    )


def test_pairs_of_the_minibatch_cost_what_the_pages_say() -> None:
    script = load("benchmarks/train_speed.py")
    again = "train_speed_again.json"
    for name in ("train_speed.json", again, "train_speed_amd.json", "train_speed_dqn.json"):
        summary = committed(name)
        for table in (script.table, script.cost_table, script.limits_table):
            assert table(summary) in study_page("train_speed.md")
        assert summary["rounds"] >= 9
        best = "fp32_every_8" if "dqn" in name else "fp32_minibatch"
        assert cost_of(best, name) < cost_of("fp32", name) / 3
    said = (
        "pairs of the minibatch take {fp32_minibatch:.0%} of the steps per second in fp32 and "
        "{bf16_minibatch:.0%} in bf16, where drawn pairs take {fp32:.0%} and {bf16:.0%}."
    )
    arms = [f"{precision}{form}" for precision in ("fp32", "bf16") for form in ("", "_minibatch")]
    costs = {arm: cost_of(arm, "train_speed.json") for arm in arms}
    words = " ".join(FRONT_PAGE.split())
    assert said.format(**costs).replace("%", " %") in words
    once_more = (
        cost_of(arm, again) for arm in ("fp32_minibatch", "bf16_minibatch", "fp32", "bf16")
    )
    assert "found {:.0%}, {:.0%}, {:.0%} and {:.0%}.".format(*once_more).replace("%", " %") in words
    assert cost_of("fp32_minibatch", again) <= 0.05
    slower = [cost_of(arm, "train_speed_amd.json") for arm in ("fp32_minibatch", "fp32")]
    assert (
        "On an AMD, in fp32, they take {:.0%} and {:.0%}.".format(*slower).replace("%", " %")
        in words
    )
    assert slower[0] <= 0.05
    assert costs["fp32_minibatch"] <= 0.07
    of_dqn = [cost_of(arm, "train_speed_dqn.json") for arm in ("fp32", "fp32_every_8")]
    assert of_dqn[1] <= 0.1
    said = (
        "DQN's 32 pairs in every update take {:.0%} of its steps per second, and {:.0%} in one of"
    )
    assert said.format(*of_dqn).replace("%", " %") in words
    lowest, highest = f"{min(slower):.0%}"[:-1], f"{costs['bf16_minibatch']:.0%}"[:-1]
    assert (
        f"the loss takes {lowest} to {highest} % of PPO's steps per second with [pairs from"
        in words
    )


@pytest.mark.parametrize(("algorithm", "least"), [("SAC", 0.7), ("PPO", 0.85)])
def test_the_loss_keeps_its_promise_of_speed_on_vectors(algorithm: str, least: float) -> None:
    for name in ("vector_speed.json", "vector_speed_again.json"):
        (measured,) = (
            each for each in committed(name)["measured"] if each["algorithm"] == algorithm
        )
        turns = measured["steps_per_second"]
        ratios = np.divide(turns["infonce"], turns["same_network"])
        assert len(ratios) >= 9
        assert np.median(ratios) >= least
        assert 0.5 <= np.median(np.divide(turns["infonce"], turns["stock"])) <= 2 / 3


def test_contrast_keeps_its_promises_in_the_committed_run() -> None:
    summary = committed("contrast_speed.json")
    times = {n: each["median"] for n, each in summary["times"].items()}
    for median in times.values():
        assert median["ours, one way"]["speed_ratio"] >= 1.0
    for n in ("4096", "8192"):
        assert times[n]["ours, symmetric"]["speed_ratio"] > 1.5
    small = times["256"]
    assert small["NTXentLoss"]["ms"] > 100 * small["ours, symmetric"]["ms"]
    assert max(summary["memory"]["extra_mb"].values()) < 300
    again = committed("contrast_speed_again.json")
    assert max(again["memory"]["extra_mb"].values()) < 300
    ratios = {arm: each["speed_ratio"] for arm, each in again["times"]["4096"]["median"].items()}
    index = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    assert f"on an AMD {ratios['ours, one way']:.2f}x and {ratios['ours, symmetric']:.2f}x" in index
    of_rounds = again["times"]["256"]["runs"]
    n_slower = sum(each["ours, one way"] > each["info-nce-pytorch"] for each in of_rounds)
    assert n_slower > len(of_rounds) / 2  # as the page says


def test_tiles_on_a_gpu_are_those_that_were_fastest() -> None:
    of_size = committed("contrast_tiles.json")["ms"]
    for n, entry in of_size.items():
        for form in ("one way", "symmetric"):
            at_once = entry[form].pop("none", None)
            if at_once is not None:
                assert int(n) <= DEVICE_CROSSOVER
                assert at_once < min(entry[form].values())
    largest = of_size["65536"]
    for form in ("one way", "symmetric"):
        times = {int(side): ms for side, ms in largest[form].items()}
        assert all(times[DEVICE_TILE] < ms for side, ms in times.items() if side < DEVICE_TILE)


def test_probes_are_fast_in_the_committed_run() -> None:
    summary = committed("probe_speed.json")
    arms = summary["arms"]
    assert (summary["frames"], len(summary["classes"])) == (50_000, 15)
    assert arms["ours"]["seconds"] < 60
    assert arms["adam"]["lowest"] > 4
    index = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    lower = 1 - arms["adam"]["mean_loss"] / arms["ours"]["mean_loss"]
    said = f"takes {arms['adam']['times_ours']:.1f} times as long, for a loss {lower:.1%} lower"
    assert said.replace("%", " %") in index


def test_collecting_is_fast_in_the_committed_run() -> None:
    summary = committed("collect_speed.json")
    medians = {
        game: {arm: speed["median"] for arm, speed in arms.items()}
        for game, arms in summary["steps_per_second"].items()
    }
    assert min(medians["pong"]["collect"], medians["breakout"]["collect"]) > 4_000
    shares = [m["collect"] / m["emulator"] / 2 for m in medians.values()]
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.48, 0.62)
    assert all(m["collect"] > 4 * m["gymnasium"] for m in medians.values())


def test_pretraining_is_fast_in_the_committed_runs() -> None:
    summary = committed("pretrain_speed.json")
    again = committed("pretrain_speed_again.json")["frames_per_second"]
    plain, stdim, ours = (
        again[name]["median"] for name in ("plain stdim", "stdim", "positional_dim")
    )
    shown = study_words("pretrain_speed.md")
    assert f"plain stdim {plain:.0f} frames/s, `stdim` {stdim:.0f} ({stdim / plain:.1f} x" in shown
    assert f"`positional_dim` {ours:.0f} ({ours / plain:.1f} x)" in shown
    found = {name: each["median"] for name, each in summary["frames_per_second"].items()}
    assert found["stdim"] >= 3 * found["plain stdim"]
    amd = committed("pretrain_speed_amd.json")["frames_per_second"]
    ratio = f"{amd['stdim']['median'] / amd['plain stdim']['median']:.1f} times"
    assert f"`stdim` is {ratio} as fast as the plain implementation here" in shown
    assert f"without bfloat16 {ratio}" in (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    share = found["stdim"] / found["stdim, loss alone"]
    assert f"its losses at 88 places take {share:.0%} of it" in shown
