"""A report says what the runs say: checked number by number."""

import csv
import io
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from rl_infonce.report.charts import charts_of, logged_curves, return_curves
from rl_infonce.report.comparison import compared, in_common, paired_scores
from rl_infonce.report.page import table_html
from rl_infonce.report.power import smallest_difference
from rl_infonce.report.report import Report, make_report
from rl_infonce.report.runs import Run, arms_of
from rl_infonce.report.sections import scaled_by
from rl_infonce.report.statistics import t_interval
from rl_infonce.report.table import Table, to_markdown

pytest.importorskip("matplotlib")
SCALES = {"pong": (-20.0, 20.0), "qbert": (100.0, 1100.0)}
GAIN = {"baseline": 0.0, "infonce": 4.0, "placebo": 0.5}


def run(game: str, arm: str, seed: int, **changes: Any) -> Run:
    """Return a run of 50 episodes whose every return is known."""
    rng = np.random.default_rng([seed, len(game), len(arm)])
    scale = 1.0 if game == "pong" else 25.0
    returns = scale * (seed + GAIN[arm] + rng.normal(0, 0.1, 50)) + (-10 if game == "pong" else 200)
    steps = np.arange(20, 1020, 20)
    f1 = {"mean": 0.5 + GAIN[arm] / 40, "agent_localization": 0.25}
    curve = (steps, np.linspace(1, 2, 50))
    made = Run(
        game=game,
        algo="ppo",
        arm=arm,
        seed=seed,
        n_steps=1000,
        n_steps_done=1000,
        steps=steps,
        returns=returns,
        curves={"infonce/grad_ratio": curve} if arm != "baseline" else {},
        probes={"converged": {"trained": f1, "untrained": {"mean": 0.4}}},
        command=f"rl-infonce train --game {game} --seed {seed}  # <{arm}> & co",
        versions={"torch": "2.8"},
        machine="a machine",
        seconds=36.0,
    )
    return replace(made, **changes)


RUNS = [run(game, arm, seed) for game in SCALES for arm in GAIN for seed in range(3)]


def area(run: Run) -> float:
    """Return the mean over hundredths of the budget of the episode that ended last."""
    last = [np.flatnonzero(run.steps <= 10 * window) for window in range(1, 101)]
    return float(np.mean([run.returns[each[-1] if len(each) else 0] for each in last]))


def report(runs: list[Run], *, with_charts: bool = False, **changes: Any) -> Report:
    """Return a report, by default without its charts, whose drawing takes most of the time."""
    settings: dict[str, Any] = {"missing": [], "scales": SCALES, "rng": np.random.default_rng(0)}
    settings["n_seeds"] = dict.fromkeys(
        (each.arm for each in runs), len({each.seed for each in runs})
    )
    with pytest.MonkeyPatch.context() as patch:
        if not with_charts:
            patch.setattr("rl_infonce.report.report.charts_of", lambda *_: [])
            patch.setattr("rl_infonce.report.report.profile_chart", lambda *_: None)
        return make_report("Sweep <x>", runs, **(settings | changes))


@cache
def whole() -> Report:
    """Return the report of all runs, which takes a second to make."""
    return report(RUNS)


def table_of(markdown: str, heading: str) -> dict[str, dict[str, str]]:
    block = markdown.split(f"## {heading}\n\n")[1].split("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


OVER_THE_BUDGET = "PPO: mean return over the budget, compared"
OF_THE_END = "PPO: mean return of its last tenth, compared"
OF_FEATURES = "PPO: what the features know (converged)"
NO_EPISODE: dict[str, Any] = {"steps": np.array([], np.int64), "returns": np.array([])}


def test_returns_and_differences_are_those_of_the_runs() -> None:
    markdown = whole().markdown
    returns = table_of(markdown, "PPO: mean return over the budget")
    compare = table_of(markdown, OVER_THE_BUDGET)
    areas = {(r.game, r.arm, r.seed): area(r) for r in RUNS}
    for game in SCALES:
        for arm in GAIN:
            own = [areas[game, arm, seed] for seed in range(3)]
            expected = f"{np.mean(own):.4g} ({min(own):.4g} to {max(own):.4g})"
            assert returns[game][arm] == expected
    for arm in ("infonce", "placebo"):
        gains = [
            np.mean([areas[game, arm, s] - areas[game, "baseline", s] for s in range(3)])
            / (high - low)
            for game, (low, high) in SCALES.items()
        ]
        shown = float(compare[arm]["difference"].split()[0])
        assert shown == pytest.approx(np.mean(gains), abs=1e-5)
        assert compare[arm]["pairs"] == "6 in 2 games"
        assert compare[arm]["in words"] == "higher"
        for game, (low, high) in SCALES.items():
            own = [
                (areas[game, arm, s] - areas[game, "baseline", s]) / (high - low) for s in range(3)
            ]
            row = compare[f"{arm}: {game}"]
            numbers = [float(number) for number in re.findall(r"[+-][\d.]+", row["difference"])]
            assert numbers == pytest.approx(list(t_interval(own)), rel=0.05, abs=1e-5)
            assert row["pairs"] == "3 in 1 game"
    names = [[arm, *(f"{arm}: {game}" for game in SCALES)] for arm in ("infonce", "placebo")]
    assert list(compare) == names[0] + names[1], "each game below its arm"


def test_equal_arms_have_no_detectable_difference() -> None:
    rng = np.random.default_rng(0)
    runs = [replace(r, returns=r.returns + rng.normal(0, 3)) for r in RUNS if r.arm == "baseline"]
    other = [replace(r, arm="infonce", returns=r.returns + rng.normal(0, 3)) for r in runs]
    found = table_of(report([*runs, *other]).markdown, OF_THE_END)
    assert found["infonce"]["in words"] == "no detectable difference"


def test_features_stand_beside_the_untrained_ones() -> None:
    found = table_of(whole().markdown, OF_FEATURES)
    assert list(found) == ["mean", "agent localization"]
    assert found["mean"] == {
        "games": "2",
        **{"untrained": "0.400", "baseline": "0.500", "infonce": "0.600", "placebo": "0.512"},
    }
    assert found["agent localization"]["untrained"] == "missing"
    assert (
        "Over 2 games (pong, qbert); scores: untrained 18, baseline 6, infonce 6, placebo 6."
        in whole().markdown
    )


def test_features_are_shown_game_by_game() -> None:
    there = [r for r in RUNS if (r.game, r.arm, r.seed) != ("qbert", "placebo", 1)]
    made = report(there, n_seeds=dict.fromkeys(("baseline", "infonce", "placebo"), 3))
    found = table_of(made.markdown, f"{OF_FEATURES}, game by game")
    games = {r.game: sorted({c for s in r.probes["converged"].values() for c in s}) for r in RUNS}
    assert sorted(found) == sorted(
        f"{game}: {category.replace('_', ' ')}"
        for game, names in games.items()
        for category in names
    )
    for game in games:
        for arm in ("baseline", "infonce", "placebo"):
            own = [
                r.probes["converged"]["trained"] for r in there if (r.game, r.arm) == (game, arm)
            ]
            assert found[f"{game}: mean"][arm] == f"{np.mean([f1['mean'] for f1 in own]):.3f}"
        assert found[f"{game}: agent localization"]["untrained"] == "missing"
    assert "placebo: 2 of 3 seeds of qbert" in made.markdown
    assert "seeds of pong" not in made.markdown


def test_features_that_lack_untrained_ones_beside_them_are_counted() -> None:
    half = {"converged": {"trained": {"mean": 0.5}}}  # died before the untrained one was probed
    runs = [
        replace(r, probes=half) if (r.game, r.arm, r.seed) == ("qbert", "placebo", 1) else r
        for r in RUNS
    ]
    notes = report(runs, n_seeds=dict.fromkeys(GAIN, 3)).markdown.split("game by game")[1]
    assert "untrained: 8 of 9 runs of qbert" in notes
    assert "runs of pong" not in notes
    assert "seeds of" not in notes


def test_shares_of_1_shade_their_cells() -> None:
    table = Table(["x", "a", "b", "c"], [["1.0", "0.250", "missing", "12.5"]], [])
    heat = table_html(table, heat=True)
    assert '<td class="heat" style="--share: 25.0%">0.250</td>' in heat
    assert '<td class="missing">missing</td>' in heat
    assert "<td>12.5</td>" in heat
    assert "heat" not in table_html(table)


def probed(each: Run, trained: float | None, untrained: float = 0.4) -> Run:
    """Return a run with probes of the mean F1 only, or without those of its own features."""
    scores = {"untrained": {"mean": untrained}}
    if trained is not None:
        scores["trained"] = {"mean": trained}
    return replace(each, probes={"converged": scores})


def test_untrained_encoders_of_two_architectures_are_not_averaged() -> None:
    f1 = {"nature": 0.25, "impala": 0.75}
    runs = [
        replace(probed(r, 0.5, f1[kind]), architecture=kind)
        for r in RUNS
        for kind in ["impala" if r.arm == "infonce" else "nature"]
    ]
    markdown = report(runs).markdown
    for found in (
        table_of(markdown, OF_FEATURES)["mean"],
        table_of(markdown, f"{OF_FEATURES}, game by game")["pong: mean"],
    ):
        assert found["untrained nature"] == "0.250"
        assert found["untrained impala"] == "0.750"
        assert "untrained" not in found


def test_features_are_averaged_over_the_games_that_all_columns_have() -> None:
    # on qbert features know more, and there infonce was not probed
    runs = [
        probed(r, None if (r.game, r.arm) == ("qbert", "infonce") else len(r.game) / 10)
        for r in RUNS
    ]
    markdown = report(runs).markdown
    found = table_of(markdown, OF_FEATURES)
    assert found["mean"] == {
        "games": "1",
        **{"untrained": "0.400", "baseline": "0.400", "infonce": "0.400", "placebo": "0.400"},
    }
    assert "left out qbert: not probed for infonce" in markdown
    assert "Over 1 game (pong); scores: untrained 9, baseline 3, infonce 3, placebo 3." in markdown


def test_features_without_a_common_game_are_missing() -> None:
    where = {"baseline": "pong", "infonce": "qbert", "placebo": "nowhere"}
    runs = [probed(r, 0.5 if r.game == where[r.arm] else None) for r in RUNS]
    markdown = report(runs).markdown
    found = table_of(markdown, OF_FEATURES)
    columns = ("untrained", "baseline", "infonce")  # of placebo nothing was probed
    assert found["mean"] == {"games": "0", **dict.fromkeys(columns, "missing")}
    assert "No game was probed for every column, so there is no average." in markdown
    assert "left out pong: not probed for infonce" in markdown
    assert "placebo: not probed on any game" in markdown


def test_features_are_compared_by_game_and_seed() -> None:
    gain = {"baseline": 0.0, "infonce": 0.1, "placebo": 0.0}
    seed_effect = (0.1, 0.3, 0.2)
    runs = [
        probed(
            r,
            seed_effect[r.seed] + gain[r.arm] + 0.01 * (r.seed - 1) * (r.arm != "baseline"),
            seed_effect[r.seed] - 0.05 * (r.seed + 1),
        )
        for r in RUNS
    ]
    made = report(runs)
    against = table_of(made.markdown, f"{OF_FEATURES}, compared")
    # 0.09, 0.10, 0.11 on both games: standard error 0.01 / sqrt(6), t of 4 degrees of freedom 2.776
    assert against["infonce"]["difference"] == "+0.100 (+0.089 to +0.111)"
    assert against["infonce"]["in words"] == "higher"
    assert against["infonce"]["pairs"] == "6 in 2 games"
    assert against["placebo"]["in words"] == "no detectable difference"
    heading = f"{OF_FEATURES}, with untrained features compared"
    gains = table_of(made.markdown, heading)
    assert [name for name in gains if ":" not in name] == ["baseline", "infonce", "placebo"]
    # 0.05, 0.10, 0.15: standard error 0.05 / sqrt(3), t of 2 degrees of freedom 4.303
    assert gains["baseline: pong"]["difference"] == "+0.10 (-0.02 to +0.22)"
    # 0.05, 0.10, 0.15 on both games
    assert gains["baseline"]["difference"] == "+0.100 (+0.043 to +0.157)"
    section = made.html.split(f"<h2>{heading}</h2>")[1].split("</section>")[0]
    assert "mean F1" in section
    assert "human-normalised" not in section, "F1 is on one scale in all games"


def test_one_draw_of_untrained_weights_is_not_compared() -> None:
    runs = [probed(r, 0.5 + r.seed / 100, 0.4 + r.seed**2 / 1e9) for r in RUNS]  # by rounding
    made = report([replace(r, probe_seeds=(0,)) for r in runs])
    assert "with untrained features compared" not in made.markdown
    note = "all runs of a game were probed beside the same untrained weights, one draw of them"
    assert note in made.markdown
    assert note in made.html
    own = report([replace(r, probe_seeds=(r.seed,)) for r in runs])
    assert "with untrained features compared" in own.markdown
    assert note not in own.markdown


def test_a_single_game_has_no_row_of_its_own() -> None:
    runs = [r for r in RUNS if r.game == "qbert"]
    compare = table_of(report(runs).markdown, OVER_THE_BUDGET)
    assert list(compare) == ["infonce", "placebo"]


def test_small_differences_are_legible() -> None:
    scales = {"pong": (-20.0, 20.0), "qbert": (0.0, 100_000.0)}
    runs = [r for r in RUNS if r.game == "qbert"]
    table = table_of(report(runs, scales=scales).markdown, OVER_THE_BUDGET)
    found = table["infonce"]["difference"]
    middle, low, high = (float(number) for number in re.findall(r"[+-][\d.]+", found))
    assert 0 < low < middle < high
    areas = {(r.arm, r.seed): area(r) for r in runs}
    gains = [(areas["infonce", s] - areas["baseline", s]) / 1e5 for s in range(3)]
    assert middle == pytest.approx(np.mean(gains), rel=0.01)


def test_how_it_was_made_is_said_in_both() -> None:
    made = whole()
    told = made.markdown.split("## How it was made\n")[1]
    for text in (told, made.html):
        for words in ("on a machine.", "Versions: torch 2.8.", "Commits of rl_infonce: not known."):
            assert words in text
        assert f"The commands of the {len(RUNS)} runs" in text
    assert all(f"\n    {each.command}\n" in told for each in RUNS)


def test_tables_of_features_are_shaded() -> None:
    sections = re.split(r"(?=<h2)", whole().html)
    shaded = [each for each in sections if 'class="heat' in each or "heat-" in each]
    assert len(shaded) == 2, "both tables of what features know"
    assert all("features know" in each.split("</h2>")[0] for each in shaded)


def noisy(runs: list[Run]) -> list[Run]:
    rng = np.random.default_rng(0)
    return [replace(r, returns=r.returns + rng.normal(0, 3)) for r in runs]


def test_how_to_read_a_table_is_said_in_markdown_too() -> None:
    markdown = whole().markdown
    assert "primary outcome of an algorithm is its first table" in markdown
    assert "human-normalised" in markdown
    assert "raw points" not in markdown
    raw = report(RUNS, scales=None).markdown
    assert "the game with the largest scores decides" in raw
    assert "human-normalised" not in raw
    of_one = report([run for run in RUNS if run.game == "pong"]).markdown
    assert "over all games" not in of_one.split("##")[0]


def test_a_run_without_a_late_episode_is_named() -> None:
    early: dict[str, Any] = {"steps": RUNS[0].steps // 2}
    runs = [replace(r, **early) if (r.game, r.seed) == ("pong", 2) else r for r in RUNS]
    last = report(runs).markdown.split("## PPO: mean return of its last tenth, compared")[1]
    last = last.split("\n## ")[0]
    of_arms = "; ".join(f"{arm}, seed 2" for arm in GAIN)
    assert f"pong: no episode ended in it, no score: {of_arms}\n" in last


def test_a_dollar_in_a_name_is_no_formula() -> None:
    runs = [replace(r, arm="$\\frac{$") for r in RUNS if r.arm == "infonce"]
    assert "$\\frac{$" in report(runs).html


def test_what_could_have_been_found_is_that_of_the_paired_test() -> None:
    runs = noisy(RUNS)
    rows = table_of(report(runs).markdown, OVER_THE_BUDGET)
    areas = {(r.game, r.arm, r.seed): area(r) for r in runs}
    for arm in ("infonce", "placebo"):
        spreads = [
            np.std([areas[game, arm, s] - areas[game, "baseline", s] for s in range(3)], ddof=1)
            / (high - low)
            for game, (low, high) in SCALES.items()
        ]
        expected = smallest_difference(spreads, 3)
        assert float(rows[arm]["found in 4 of 5"]) == pytest.approx(expected, rel=0.05)


def test_two_pairs_do_not_tell_what_could_have_been_found() -> None:
    few = [r for r in noisy(RUNS) if (r.arm, r.game, r.seed) != ("infonce", "pong", 0)]
    rows = table_of(report(few).markdown, OVER_THE_BUDGET)
    assert rows["infonce"]["found in 4 of 5"] == "cannot be told"
    assert float(rows["placebo"]["found in 4 of 5"]) > 0


def test_equal_gains_are_said_to_tell_no_scatter() -> None:
    levels = {"baseline": 0.0, "infonce": 5.0}
    runs = [
        run("pong", arm, seed, returns=np.full(50, seed + level))
        for arm, level in levels.items()
        for seed in range(3)
    ]
    note = "infonce: all pairs differ by the same, so their scatter cannot be told"
    for these, is_there in ((runs, True), (RUNS, False)):
        returns = report(these).markdown.split("mean return over the budget, compared")[1]
        assert (note in returns.split("\n## ")[0]) == is_there


def test_equal_gains_on_one_game_of_several_are_said_to_tell_no_scatter() -> None:
    equal = [
        replace(r, returns=np.full(50, r.seed + 5.0 * (r.arm == "infonce")))
        if r.game == "pong"
        else r
        for r in noisy(RUNS)
    ]
    note = "infonce: pong: all pairs differ by the same"
    assert note in report(equal).markdown
    assert note not in report(noisy(RUNS)).markdown


def test_a_baseline_about_0_is_no_unit() -> None:
    runs = (
        [run("a", "baseline", s, returns=np.full(50, 10.0 * (s - 1))) for s in range(3)]
        + [run("b", "baseline", s, returns=np.full(50, 100.0 + 10 * s)) for s in range(3)]
        + [run("c", "baseline", 0, returns=np.full(50, -7.0))]
    )
    scales, about = scaled_by(runs, "ppo", "baseline", {})
    assert scales == {"b": (0.0, 110.0), "c": (0.0, 7.0)}
    assert "No human score is known of b, c:" in about[0]


def test_missing_and_unequal_seeds_are_shown() -> None:
    runs = [r for r in RUNS if (r.game, r.arm, r.seed) != ("pong", "infonce", 2)]
    planned = dict.fromkeys(GAIN, 3)
    made = report(runs, missing=["pong-ppo-infonce-2 (failed)"], n_seeds=planned)
    for page in (made.markdown, made.html):
        assert page.count("Runs of the same game and seed are compared") == 1
        assert "Missing: pong-ppo-infonce-2 (failed)." in page
    assert "in no average" not in made.html, "its features may still be to be probed"
    returns = table_of(made.markdown, "PPO: mean return over the budget")
    assert returns["pong"]["infonce"].endswith("2 of 3 seeds")
    assert table_of(made.markdown, OF_THE_END)["infonce"]["pairs"] == "5 in 2 games"
    assert "infonce: left out pong, seed 2: only one arm has a score of it" in made.markdown
    assert len(list(csv.DictReader(io.StringIO(made.csv)))) == 17


def test_an_arm_without_a_run_keeps_its_place() -> None:
    planned = dict.fromkeys((*GAIN, "wild"), 3)
    made = report(RUNS, missing=["pong-ppo-wild-0 (failed: NaN)"], n_seeds=planned).markdown
    assert table_of(made, "PPO: mean return over the budget")["pong"]["wild"] == "missing"
    compare = table_of(made, "PPO: mean return over the budget, compared")
    assert compare["wild"]["in words"] == "not compared, see below"
    assert "Where its own settings made an arm fail, what is left of it looks better" in made
    begun = report(RUNS, missing=["pong-ppo-wild-0 (begun)"], n_seeds=planned).markdown
    assert "looks better" not in begun


def test_no_other_arm_takes_the_baselines_place() -> None:
    runs = [each for each in RUNS if each.arm != "baseline"]
    planned = dict.fromkeys(("infonce", "baseline", "placebo"), 3)
    made = report(runs, scales={}, n_seeds=planned).markdown
    compare = table_of(made, "PPO: mean return over the budget, compared")
    assert "| against baseline |" in made
    assert {each["in words"] for each in compare.values()} == {"not compared, see below"}


def test_arms_are_compared_with_the_one_that_is_asked_for() -> None:
    made = report(RUNS, against="placebo").markdown
    assert "Several arms are compared with placebo: where none of 2 differs" in made
    assert "| against baseline |" not in made
    table = table_of(made, OVER_THE_BUDGET)
    former = table_of(whole().markdown, OVER_THE_BUDGET)["placebo"]["difference"].split()[0]
    assert float(table["baseline"]["difference"].split()[0]) == pytest.approx(-float(former))
    gains = [
        (area(ours) - area(theirs)) / (scale[1] - scale[0])
        for game, scale in SCALES.items()
        for ours in RUNS
        for theirs in RUNS
        if (ours.game, ours.arm) == (game, "infonce")
        and (theirs.game, theirs.arm, theirs.seed) == (game, "placebo", ours.seed)
    ]
    assert float(table["infonce"]["difference"].split()[0]) == pytest.approx(
        np.mean(gains), abs=5e-3
    )


def test_how_often_equal_arms_are_said_to_differ_is_told() -> None:
    assert "where none of 2 differs, at least one is said to differ in up to 10% of" in (
        whole().markdown
    )
    assert "is said to differ" not in report([r for r in RUNS if r.arm != "placebo"]).markdown


def test_what_was_not_planned_is_named() -> None:
    made = report(RUNS, not_planned=["pong-ppo-infonce-7"])
    for page in (made.markdown, made.html):
        assert "Begun, but not in this grid: pong-ppo-infonce-7." in page


def test_a_run_without_an_episode_is_in_no_average() -> None:
    runs = [replace(r, **NO_EPISODE) if (r.game, r.arm) == ("pong", "placebo") else r for r in RUNS]
    markdown = report(runs).markdown
    returns = table_of(markdown, "PPO: mean return of its last tenth")
    assert returns["pong"]["placebo"] == "missing"
    assert table_of(markdown, OF_THE_END)["placebo"]["pairs"] == "3 in 1 game"


def test_every_run_is_in_the_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(whole().csv)))
    assert len(rows) == len(RUNS)
    for row, each in zip(rows, RUNS, strict=True):
        assert (row["game"], row["arm"], int(row["seed"])) == (each.game, each.arm, each.seed)
        assert float(row["area"]) == pytest.approx(area(each))
        assert float(row["final"]) == pytest.approx(each.returns[-5:].mean())
        assert float(row["f1_converged"]) == each.probes["converged"]["trained"]["mean"]


def test_a_run_whose_returns_cannot_be_averaged_is_named() -> None:
    broken = replace(RUNS[1], returns=np.full(50, np.nan))
    with pytest.raises(ValueError, match="pong, ppo, baseline, seed 1: Expected finite `returns`"):
        report([RUNS[0], broken])


def test_only_common_seeds_are_compared() -> None:
    ours = {"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 1.0}, "c": {0: 1.0, 1: 1.0}}
    theirs = {"a": {1: 1.0, 0: 0.5}, "b": {0: 1.0}, "d": {3: 1.0}}
    pairs, left_out = in_common(ours, theirs)
    assert pairs == {"a": [0, 1]}
    assert left_out == [
        "a, seed 2: only one arm has a score of it",
        "b: one common seed, of which no interval can be made",
        "c, seeds 0, 1: only one arm has a score of it",
        "d, seed 3: only one arm has a score of it",
    ]
    paired = paired_scores(ours, theirs)
    assert paired.left_out == tuple(left_out)
    found = compared(paired, rng=np.random.default_rng(0))
    assert found is not None
    assert found.difference.mean == pytest.approx(((1.0 - 0.5) + (2.0 - 1.0)) / 2)
    unscaled = paired_scores(ours, theirs, {"x": (0.0, 1.0)})
    assert "a: no human score is known" in unscaled.left_out[-1]
    assert compared(unscaled, rng=np.random.default_rng(0)) is None


def test_the_baseline_comes_first() -> None:
    runs = [run("pong", arm, 0) for arm in ("placebo", "baseline")]
    assert arms_of(runs) == ["baseline", "placebo"]


def test_cells_cannot_break_a_markdown_table() -> None:
    assert to_markdown(Table(["a|b"], [["c|d"]], ["note"])) == ("| a/b |\n| --- |\n| c/d |\n\nnote")


def test_a_comparison_that_cannot_be_made_has_its_reason() -> None:
    zero = [replace(r, returns=np.zeros(50)) if r.arm == "baseline" else r for r in RUNS]
    found = report(zero, scales={}).markdown
    table = table_of(found, OVER_THE_BUDGET)
    assert table["infonce"]["in words"] == "not compared, see below"
    assert table["infonce"]["difference"] == "missing"
    arms = "infonce, placebo: left out"
    assert (
        f"{arms} pong: no human score is known, and the baseline's mean return is not told" in found
    )
    assert "common seed" not in found
    alone = [r for r in RUNS if r.arm == "baseline" or r.seed == 0]
    assert f"{arms} pong: one common seed, of which" in report(alone).markdown
    silent = [replace(r, **NO_EPISODE) for r in RUNS]
    assert f"{arms} everything: neither of them has a score" in report(silent).markdown


def test_an_arm_that_one_algorithm_lacks_is_not_hidden_nor_do_their_definitions_meet() -> None:
    dqn = [replace(r, algo="dqn") for r in RUNS if r.arm != "placebo"]
    made = report([*RUNS, *dqn], with_charts=True)
    names = re.findall(r'\bid="([^"]+)"', made.html)
    assert len(names) == len(set(names)) > 0
    markdown = made.markdown
    assert table_of(markdown, "DQN: mean return over the budget")["pong"]["placebo"] == "missing"
    compare = table_of(markdown, "DQN: mean return over the budget, compared")
    assert compare["placebo"]["in words"] == "not compared, see below"
    notes = markdown.split("## DQN: what the features know (converged)\n")[1].split("## ")[0]
    assert "placebo: not probed on any game" in notes


def test_runs_are_compared_at_equal_wall_clock() -> None:
    # infonce learns twice as much in twice the time, a line through zero
    rising = np.arange(1.0, 51.0)
    runs = [
        replace(
            r,
            returns=rising * (2 if r.arm == "infonce" else 1) + 0.01 * r.seed,
            seconds=72.0 if r.arm == "infonce" else 36.0,
        )
        for r in RUNS
    ]
    markdown = report(runs, scales=None).markdown
    equal_steps = table_of(markdown, OF_THE_END)
    heading = "PPO: mean return of its last tenth, at equal wall-clock, compared"
    equal_time = table_of(markdown, heading)
    # the last five of 50 episodes: mean 48 doubled; of 25 episodes the last three are 23 to 25
    assert equal_steps["infonce"]["difference"].startswith("+48.000 (")
    assert equal_time["infonce"]["difference"].startswith(f"{2 * 24 - 48:+.3f} (")
    assert equal_time["placebo"]["in words"] == "no detectable difference"
    assert "PPO: mean return over the budget, at equal wall-clock, compared" in markdown
    notes = markdown.split(heading)[1].split("## ")[0]
    times = "infonce: takes this many times the seconds of baseline, a median by game"
    assert f"{times}: pong 2.00 (3 pairs), qbert 2.00 (3 pairs)" in notes
    assert "at a constant rate of steps" in notes
    assert "shared machine" in notes


def test_curves_logged_at_different_steps_share_an_axis() -> None:
    def log(r: Run) -> Run:
        steps = np.arange(1 + r.seed, 1001, 7 + r.seed)  # hardly any step in common
        return replace(r, curves={"infonce/grad_ratio": (steps, np.full(len(steps), 3.0))})

    runs = [log(r) for r in RUNS if r.arm == "infonce" and r.game == "pong"]
    silent = replace(runs[1], curves={})
    charts = charts_of([runs[0], silent, runs[2]], "ppo", np.random.default_rng(0))
    by_text = {chart.text: chart for chart in charts}
    ratio = by_text["gradient of InfoNCE / of RL on pong: infonce ends at 3"]
    assert ratio.svg
    assert ratio.note == "Without a curve: infonce seeds 1."
    bound = by_text["bound on mutual information, nats on pong: no run has such a curve"]
    assert not bound.svg
    page = report([runs[0], silent, runs[2]], with_charts=True).html
    assert f"<figcaption>{ratio.note}</figcaption>" in page
    assert f"<p>{bound.text}.</p>" in page
    curves = logged_curves(runs, "infonce/grad_ratio")
    assert curves.values.shape == (40, 3)
    assert curves.steps[-1] == 1000
    assert (curves.values == 3.0).all()


def test_a_run_without_an_episode_drops_no_other() -> None:
    runs = [r for r in RUNS if (r.game, r.arm) == ("pong", "infonce")]
    curves = return_curves([runs[0], replace(runs[1], **NO_EPISODE), runs[2]])
    np.testing.assert_array_equal(curves.values, return_curves([runs[0], runs[2]]).values)
    assert [run.seed for run in curves.without] == [1]
    given = [replace(r, **NO_EPISODE) if (r.arm, r.seed) == ("infonce", 1) else r for r in RUNS]
    html = report(given, with_charts=True).html
    assert 'aria-label="return on pong: baseline ends at ' in html
    assert "<figcaption>Without a curve: infonce seeds 1.</figcaption>" in html
    assert np.isfinite(curves.values[-1]).all()


def test_budgets_of_few_steps_have_curves() -> None:
    short = replace(RUNS[0], n_steps=7, n_steps_done=7, steps=np.arange(1, 8), returns=np.ones(7))
    assert return_curves([short]).values.shape == (7, 1)
    assert report([short]).html


def test_without_human_scores_the_baseline_is_the_unit() -> None:
    runs = [replace(r, game="Ant-v5" if r.game == "pong" else r.game) for r in RUNS]
    found = report(runs).markdown
    gains = {
        game: [
            area(r)
            - area(next(b for b in runs if (b.game, b.arm, b.seed) == (game, "baseline", s)))
            for s in range(3)
            for r in runs
            if (r.game, r.arm, r.seed) == (game, "infonce", s)
        ]
        for game in ("Ant-v5", "qbert")
    }
    baseline = [area(r) for r in runs if (r.game, r.arm) == ("Ant-v5", "baseline")]
    assert np.mean(baseline) < 0, "of which the size is the unit"
    of_ant = np.mean(gains["Ant-v5"]) / abs(np.mean(baseline))
    table = table_of(found, OVER_THE_BUDGET)
    assert float(table["infonce: Ant-v5"]["difference"].split()[0]) == pytest.approx(
        of_ant, abs=5e-3
    )
    of_qbert = np.mean(gains["qbert"]) / 1000
    assert float(table["infonce"]["difference"].split()[0]) == pytest.approx(
        (of_ant + of_qbert) / 2, abs=5e-3
    )
    assert "0 is a random agent, 1 a human" in found
    assert "No human score is known of Ant-v5: there, differences are in units" in found
    alone = report([r for r in runs if r.game == "Ant-v5"]).markdown
    assert "a random agent" not in alone
    assert "No human score" not in report(RUNS).markdown
