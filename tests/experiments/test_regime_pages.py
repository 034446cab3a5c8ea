"""The pages of the study of regimes, beside its results."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regime_grids import Grid, Runs, read_grid, runs_of
from regime_pages import draw, map_table, table, tasks_table, tried_table
from regime_scores import (
    Row,
    area,
    difference,
    ending,
    in_units,
    measured,
    paired,
    ratio,
    row_of,
    whole,
)

from rl_infonce.report.statistics import Interval
from tests.experiments.loading import EXPERIMENTS, RESULTS, study_page, study_words
from tests.experiments.regime_maps import present, words_of, words_of_picture

pytest.importorskip("mujoco")
PAGES = ("README", "SCREENINGS", "FORMER_DEFAULTS")
PAGE = study_words("regimes/README.md")
FIRST_PAGE = " ".join((EXPERIMENTS.parent / "README.md").read_text(encoding="utf-8").split())
# `glob("*/")` also finds files before Python 3.11.
TRAINED = sorted(path for path in (RESULTS / "regimes").iterdir() if path.is_dir())


def grid_of(name: str) -> Grid:
    return read_grid(EXPERIMENTS / "regimes" / f"{name}.toml")


@cache
def study(name: str) -> tuple[Grid, Runs]:
    """Return a grid and what was written of its runs."""
    grid = grid_of(name)
    return grid, runs_of(grid, RESULTS / "regimes" / name)


@cache
def confirmation(name: str) -> Row:
    """Return what a confirmation found."""
    return row_of(grid_of(name), RESULTS / "regimes" / name)


@pytest.mark.parametrize("folder", TRAINED, ids=lambda folder: folder.name)
def test_a_page_holds_the_tables_of_the_results(folder: Path) -> None:
    areas, *_ = table(grid_of(folder.name), folder).split("\n\n")
    pages = [study_page(f"regimes/{name}.md") for name in PAGES]
    assert sum(areas.strip() in page for page in pages) == 1


def test_the_page_holds_the_map_of_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = study_page("regimes/README.md")
    (command,) = re.findall(r"^python experiments/regimes\.py map .*$", page, re.MULTILINE)
    names = re.findall(r"experiments/regimes/(\w+)\.toml", command)
    rows = [confirmation(name) for name in names]
    assert map_table(rows).strip() in page
    assert tasks_table(rows).strip() in page
    draw(rows, tmp_path / "map.svg")
    assert words_of(tmp_path / "map.svg") == words_of_picture(rows)
    committed, drawn = (lines_of(each / "map.svg") for each in (RESULTS / "regimes", tmp_path))
    np.testing.assert_allclose(committed, drawn, atol=2)  # points; matplotlib's versions differ
    assert words_of(RESULTS / "regimes" / "map.svg") == words_of_picture(rows)


def test_the_page_counts_the_forms_that_were_tried() -> None:
    paths = sorted((EXPERIMENTS / "regimes").glob("*_screen.toml"))
    grids = {path.stem: grid_of(path.stem) for path in paths}
    assert tried_table(grids, RESULTS / "regimes") in study_page("regimes/README.md")


def test_a_grid_without_a_run_is_named() -> None:
    grids = {path.stem for path in (EXPERIMENTS / "regimes").glob("*.toml")}
    trained = {path.name for path in TRAINED}
    pages = "".join(study_page(f"regimes/{name}.md") for name in PAGES)
    untrained = grids - trained
    unnamed = {each for each in untrained if not (f"`{each}`" in pages or f"{each}.toml" in pages)}
    assert not unnamed, f"Say on results/regimes/SCREENINGS.md what these grids ask: {unnamed}"


def test_the_page_counts_the_seeds_that_fell() -> None:
    grid, runs = study("ppo_sparse_distractors")

    def falls(curve: list[float | None]) -> bool:
        known = np.array([each for each in curve if each is not None])
        means = np.convolve(known, np.ones(5) / 5, mode="valid")
        return bool((means[np.argmax(means > 500) :] < 150).any())

    fell = [
        sum(falls(run["curve"]) for run in runs[grid.tasks[0], arm].values())
        for arm in ("infonce", "baseline")
    ]
    assert f"in {fell[0]} of ten seeds with the loss and in {fell[1]} without it" in PAGE


def test_with_the_third_default_few_seeds_fall() -> None:
    def lost(name: str, task: str, arm: str = "infonce") -> list[float]:
        found = []
        for run in study(name)[1][task, arm].values():
            known = np.array([each for each in run["curve"] if each is not None])
            means = np.convolve(known, np.ones(5) / 5, mode="valid")
            found.append((means.max() - means[-1]) / abs(means.max()))
        return sorted(found)

    noise, plain = "ppo_aligned_distractors", "ppo_aligned_plain"
    beside = [each for task in grid_of(noise).fresh_tasks for each in lost(noise, task)]
    assert len(beside) == 20
    assert 0.03 < max(beside) < 0.04
    assert "its 20 runs beside noise end within 4 % of their best such mean." in PAGE
    walker, biped = grid_of(plain).fresh_tasks
    assert 0.06 < max(lost(plain, walker)) < 0.07
    assert "Without noise those on Walker2d end within 7 % of it" in PAGE
    falls = [lost(plain, biped, arm) for arm in ("infonce", "baseline")]
    assert all(second_worst < 0.6 for *_, second_worst, _ in falls)
    ends = f"one of ten on BipedalWalker ends {falls[0][-1]:.0%} below it"
    assert ends.replace("%", " %") in PAGE
    ends = f"one of the same network without the loss ends {falls[1][-1]:.0%} below it"
    assert ends.replace("%", " %") in PAGE


def test_the_seed_that_fell_in_a_screening_and_the_pilots_row() -> None:
    words = study_words("regimes/SCREENINGS.md")
    _, runs = study("ppo_aligned_screen")
    curve = runs["HopperWhite128-v5", "infonce"][101]["curve"]
    tenths = np.convolve(whole(curve), np.ones(10) / 10, mode="valid")
    assert f"falls from {tenths.max():.0f} to {tenths[-1]:.0f}, as means of a tenth" in words
    cells = [
        ", ".join(f"{area(runs[task, 'infonce'][seed]['curve']):.0f}" for seed in (100, 101))
        for task in ("HalfCheetahWhite128-v5", "HopperWhite128-v5")
    ]
    assert "| features alone, third default | {} | {};".format(*cells) in words


def test_what_is_selected_beside_noise_is_what_the_page_says() -> None:
    grid, runs = study("ppo_selected_distractors")
    for task, n_useful in zip(grid.fresh_tasks, (17, 10), strict=True):
        for arm, n_inputs in (("infonce", n_useful), ("placebo", n_useful + 128)):
            selected = {run["last_infonce"]["selected_inputs"] for run in runs[task, arm].values()}
            assert selected == {n_inputs}
    assert "and the placebo selected all 138 or 145 of them" in PAGE


def test_what_there_is_to_gain_and_what_negatives_do() -> None:
    grid, runs = study("ppo_selected_distractors")
    scores = in_units(grid, measured(runs))
    walker, reacher = grid.fresh_tasks

    def over(tasks: list[str], arm: str, other: str) -> Interval:
        return present(difference(tasks, scores, arm, other))

    def mean(task: str, arm: str) -> float:
        return float(np.mean(list(scores[task, arm].values())))

    plain, signed = "{:.3f} ({:.3f} to {:.3f})", "({:+.3f}, {:+.3f} to {:+.3f})"
    gains = [over([task], "oracle", "baseline")[:3] for task in (walker, reacher)]
    above = [plain.format(*each) for each in gains]
    assert f"above the baseline by {above[0]} on Walker2d and by {above[1]} on Reacher." in PAGE
    share = (mean(walker, "infonce") - mean(walker, "baseline")) / gains[0][0]
    assert f"Of this the loss gains {share:.2f} on Walker2d" in PAGE
    to_oracle = [over([task], "infonce", "oracle") for task in (walker, reacher)]
    assert to_oracle[0].low < 0 < to_oracle[0].high
    assert f"to the oracle is detected {signed.format(*to_oracle[0][:3])}" in PAGE
    assert f"it is above the oracle by {plain.format(*to_oracle[1][:3])}" in PAGE
    more, less = (
        over([walker], "self_prediction", "infonce"),
        over([reacher], "infonce", "self_prediction"),
    )
    assert f"on Walker2d, by {plain.format(*more[:3])}" in PAGE
    assert f"on Reacher, by {plain.format(*less[:3])}" in PAGE
    both = over(list(grid.fresh_tasks), "self_prediction", "infonce")
    assert f"no difference is detected {signed.format(*both[:3])}" in PAGE
    ours, theirs = paired(grid.fresh_tasks, scores, "self_prediction", "baseline")
    assert f"scores {present(ratio(ours, theirs)).mean:.2f} times what the baseline does" in PAGE
    for task in grid.fresh_tasks:
        numbers = [
            {run["last_infonce"]["selected_inputs"] for run in runs[task, arm].values()}
            for arm in ("infonce", "self_prediction")
        ]
        assert numbers[0] == numbers[1]
    _, without_noise = study("ppo_selected_plain")
    for seed, run in runs[walker, "oracle"].items():
        assert run["curve"] == without_noise["Walker2d-v5", "baseline"][seed]["curve"]


def test_what_negatives_do_in_sac() -> None:
    grid, runs = study("sac_sparse_distractors")
    scores = in_units(grid, measured(runs))
    tasks = list(grid.fresh_tasks)

    def over(arm: str, other: str) -> Interval:
        return present(difference(tasks, scores, arm, other))

    for task in tasks:
        assert len(runs[task, "self_prediction"]) == len(runs[task, "oracle"]) == 6
        assert len(runs[task, "stock"]) == 6
    plain = "{:.3f} ({:.3f} to {:.3f})"
    negatives, useful = over("infonce", "self_prediction"), over("oracle", "infonce")
    assert min(negatives.low, useful.low) > 0
    assert f"above `self_prediction` by {plain.format(*negatives[:3])}, with six seeds" in PAGE
    assert f"is above the loss by {plain.format(*useful[:3])}, and scores more than stock" in PAGE
    told = f"they gain {plain.format(*negatives[:3])}, and RL alone on the useful inputs scores "
    assert f"{told}{plain.format(*useful[:3])} more than the loss." in FIRST_PAGE
    means = {
        (task, arm): np.mean(list(scores[task, arm].values()))
        for task in tasks
        for arm in ("infonce", "self_prediction", "oracle")
    }
    assert min(means[task, "oracle"] for task in tasks) > 1
    for task in tasks:
        ours, theirs = means[task, "infonce"], means[task, "self_prediction"]
        assert f"{ours:.2f} against {theirs:.2f} on {task.partition('White')[0]}" in PAGE
    beside = over("self_prediction", "baseline")
    assert beside.low < 0 < beside.high
    told = f"({beside.mean:.3f}, {beside.low:.3f} to {beside.high:+.3f})"
    assert f"and the same network is detected {told}." in PAGE


def test_without_noise_no_difference_of_self_prediction_is_detected() -> None:
    grid, runs = study("ppo_selected_plain")
    scores = in_units(grid, measured(runs))
    found = [
        present(difference(list(grid.fresh_tasks), scores, "self_prediction", other))
        for other in ("infonce", "baseline")
    ]
    assert all(each.low < 0 < each.high for each in found)
    told = [f"({each.mean:+.3f}, {each.low:+.3f} to {each.high:+.3f})" for each in found]
    words = "neither from the loss {} nor from the same network {} is a difference detected"
    assert words.format(*told) in PAGE


def test_a_ratio_is_that_of_means_over_tasks() -> None:
    told = []
    for name in ("sac_sparse_distractors", "ppo_selected_distractors"):
        grid, runs = study(name)
        scores = in_units(grid, measured(runs))
        for task in grid.fresh_tasks:
            loss, plain = (
                np.mean(list(scores[task, arm].values())) for arm in ("infonce", "baseline")
            )
            told.append(f"{loss / plain:.2f}")
    words = (
        "SAC's 1.66 is {} on Pendulum and {} on Reacher, "
        "and PPO's 1.42 is {} on Walker2d and {} on Reacher."
    )
    assert words.format(*told) in PAGE


def test_the_baseline_without_noise_repeats_known_runs() -> None:
    found = []
    for name, arm in (("ppo_selected_plain", "baseline"), ("ppo_aligned_plain", "baseline_beside")):
        grid, runs = study(name)
        found.append(
            {
                (task, seed): run["curve"]
                for task in grid.tasks
                for seed, run in runs[task, arm].items()
            }
        )
    assert len(found[0]) == 20
    assert found[0] == found[1]
    assert "The twenty of `baseline` repeat, to the last digit, those of `baseline_beside`" in PAGE


def lines_of(picture: Path) -> list[float]:
    """Return where the lines of a picture go, in points."""
    paths = re.findall(r' d="([^"]*)"', picture.read_text())
    return [float(number) for path in paths for number in re.findall(r"-?[0-9.]+", path)]


def test_the_first_page_says_where_the_loss_helps() -> None:
    names = ("sac_sparse_distractors", "ppo_selected_distractors")
    sac, ppo = map(confirmation, names)
    wide = "{:.3f} ({:.3f} to {:.3f})"
    for row, study_name in zip((sac, ppo), names, strict=True):
        grid, runs = study(study_name)
        scores = in_units(grid, measured(runs))
        for task in row.grid.fresh_tasks:
            means = " | ".join(
                f"{np.mean(list(scores[task, arm].values())):.2f}"
                for arm in ("stock", "baseline", "infonce")
            )
            found = row.on_tasks[task]
            over = [present(found.over_baseline), present(found.over_placebo)]
            assert min(each.low for each in over) > 0
            cells = " | ".join(wide.format(*each[:3]) for each in over)
            name = f"{row.grid.algorithm} on {task.partition('White')[0]}"
            assert f"| {name} | {means} | {cells} | {found.cost:.2f} |" in FIRST_PAGE
    for words, interval, form in (
        ("**SAC** scores {} what", sac.ratio, "{:.2f} times ({:.2f} to {:.2f})"),
        (
            "at equal processor time also, by {}, nearly all of it on Reacher.",
            sac.at_equal_time,
            wide,
        ),
        ("**PPO** scores {} what", ppo.ratio, "{:.2f} times ({:.2f} to {:.2f})"),
        ("processor time also, by {}, all of it on Walker2d.", ppo.at_equal_time, wide),
    ):
        assert words.format(form.format(*present(interval)[:3])) in FIRST_PAGE
    ratios = [present(row.ratio).mean for row in (sac, ppo)]
    assert "SAC by default [scored {:.2f} times]".format(*ratios) in FIRST_PAGE
    assert "PPO {1:.2f} times what".format(*ratios) in FIRST_PAGE
    assert "Stock Stable-Baselines3 scored less than that network." in FIRST_PAGE
    short = "({:.3f}, {:.3f} to {:.3f})"
    for words, arm in (
        ("no difference is detected from the same pipeline [without negatives]", "self_prediction"),
        ("without negatives](experiments/results/regimes/README.md#the-map) {}", "self_prediction"),
        ("nor from RL alone on the useful inputs {}", "oracle"),
    ):
        gain = present(ppo.over[arm])
        assert gain.low < 0 < gain.high
        assert words.format(short.format(*gain[:3])) in FIRST_PAGE
    for row in (sac, ppo):
        assert present(row.over["stock"]).mean > present(row.over["baseline"]).mean
    assert present(sac.at_equal_time).low > 0
    assert present(ppo.at_equal_time).low > 0
    walker, reacher = (present(ppo.on_tasks[task].at_equal_time) for task in ppo.grid.tasks)
    assert walker.low > 0 > reacher.low
    assert reacher.mean < 0.1 * walker.mean


def test_the_first_page_says_what_the_loss_does_where_all_inputs_are_useful() -> None:
    now, former = map(confirmation, ("ppo_selected_plain", "ppo_aligned_plain"))
    assert now.n_seeds == former.n_seeds == 10
    over, cost = present(now.over["baseline"]), present(former.over["baseline"])
    assert over.low < 0 < over.high
    assert cost.high < 0
    assert round(cost.mean, 1) == -0.1
    ratio = present(now.ratio)
    numbers = f"{ratio.mean:.2f} times, {ratio.low:.2f} to {ratio.high:.2f}"
    assert f"without noise neither PPO ({numbers}) nor SAC" in FIRST_PAGE
    slower = present(now.at_equal_time)
    assert slower.high < 0
    told = "({:.3f}, {:.3f} to {:.3f})".format(*slower[:3])
    assert f"At equal processor time PPO scores less {told}, and of SAC no" in FIRST_PAGE
    sac = confirmation("sac_features_plain")
    assert sac.n_seeds == 10
    over, ratio = present(sac.over["baseline"]), present(sac.ratio)
    assert over.low < 0 < over.high
    numbers = f"{ratio.mean:.2f} times, {ratio.low:.2f} to {ratio.high:.2f}"
    assert f"nor SAC ({numbers}) differed detectably at equal steps" in FIRST_PAGE
    at_equal_time = present(sac.at_equal_time)
    assert at_equal_time.low < 0 < at_equal_time.high
    told = "({:.3f}, {:.3f} to {:.3f})".format(*at_equal_time[:3])
    assert f"and of SAC no difference is detected {told}." in FIRST_PAGE


def test_most_of_sacs_gain_on_reacher_comes_without_true_futures() -> None:
    grid, runs = study("sac_sparse_distractors")
    scores, endings = in_units(grid, measured(runs)), measured(runs, ending)

    def mean(of: Any, place: int, arm: str) -> float:
        return float(np.mean(list(of[grid.tasks[place], arm].values())))

    loss, plain, placebo = (mean(scores, 1, arm) for arm in ("infonce", "baseline", "placebo"))
    assert round(4 * (placebo - plain) / (loss - plain)) == 3
    assert f"returns {loss:.2f} of what stock does without noise" in PAGE
    assert f"and the same network {plain:.2f}." in PAGE
    assert f"does not train either, returns {placebo:.2f}." in PAGE
    stock = [f"{mean(scores, place, 'stock'):.2f}" for place in (0, 1)]
    assert "stock beside the noise returns {} on Pendulum and {} on Reacher.".format(*stock) in PAGE
    ends = [f"{mean(endings, 0, arm):.0f}" for arm in ("baseline", "infonce")]
    assert f"({' and '.join(ends)} in the last tenth of the budget)" in PAGE


def test_td3_gains_on_one_of_two_tasks() -> None:
    row, (grid, runs) = confirmation("td3_distractors"), study("td3_distractors")
    pendulum, reacher = grid.tasks
    gain = present(row.over["baseline"])
    assert gain.low < 0 < gain.high
    assert "nor did TD3 beside noise, which gained on one of two tasks" in FIRST_PAGE
    assert "over both tasks ({:+.3f}, {:+.3f} to {:+.3f})".format(*gain[:3]) in PAGE
    on = [present(row.on_tasks[task].over_baseline) for task in (reacher, pendulum)]
    assert on[0].low > 0 > on[1].low
    assert on[1].high > 0
    wide = "{:.3f} ({:.3f} to {:.3f})".format(*on[0][:3])
    words = (
        f"**TD3**, trained as long on SAC's tasks, gains {wide} on Reacher, and none is detected"
    )
    assert words in FIRST_PAGE
    told = ["({:.3f}, {:.3f} to {:.3f})".format(*each[:3]) for each in (on[1], gain)]
    assert "on Pendulum {} or over both {}.".format(*told) in FIRST_PAGE
    slow = present(row.on_tasks[pendulum].at_equal_time)
    assert "scores less ({:+.3f}, {:+.3f} to {:+.3f}).".format(*slow[:3]) in PAGE
    assert slow.high < 0
    scores = in_units(grid, measured(runs))
    loss, plain, placebo = (
        float(np.mean(list(scores[reacher, arm].values())))
        for arm in ("infonce", "baseline", "placebo")
    )
    scored = f"the loss scores {loss:.2f} and that network {plain:.2f}, and the placebo's encoder"
    assert f"{scored} {placebo:.2f}, so that two thirds" in PAGE
    assert round(3 * (placebo - plain) / (loss - plain)) == 2


def test_one_actor_of_td3_saturates() -> None:
    grid, runs = study("td3_distractors")
    pendulum = grid.tasks[0]
    failed, *ends = sorted(ending(run["curve"]) for run in runs[pendulum, "infonce"].values())
    plain = [ending(run["curve"]) for run in runs[pendulum, "baseline"].values()]
    told = f"nine of ten seeds return there between {min(ends):.0f} and {max(ends):.0f}, and"
    assert f"{told} those of the network between {min(plain):.0f} and {max(plain):.0f}." in PAGE
    assert f"The tenth seed returns {failed:.0f} and never learned" in PAGE
    curves = [runs[pendulum, arm][2]["curve"] for arm in ("infonce", "placebo")]
    assert curves[0][10:] == curves[1][10:]
    assert "in 90 % of the budget its returns are to the last digit" in PAGE
    assert min(in_units(grid, measured(runs))[pendulum, "infonce"].values()) < 0
