"""Tables of experiments/results/**/*.md are what the commands print from the committed results."""

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from rl_infonce.atari.published import published_scores
from rl_infonce.pretraining import OBJECTIVES
from rl_infonce.report.statistics import t_difference
from tests.experiments.loading import (
    EXPERIMENTS,
    FRONT_PAGE,
    RESULTS,
    committed,
    committed_runs,
    load,
    study_page,
    study_words,
)

WEIGHT = study_page("infonce_coef.md")
PRETRAINED_GAMES = ("pong", "boxing", "freeway")


@pytest.mark.parametrize("name", ["defaults", "pong_curve"])
def test_the_table_of_a_folder_comes_from_the_committed_runs(name: str) -> None:
    assert load(f"{name}.py").table(RESULTS / name) in study_page(f"{name}/README.md")


def test_the_settings_tried_elsewhere_come_from_the_committed_runs() -> None:
    found = committed_runs("default_arms")
    runs = {(run["game"], run["seed"], run["arm"]): float(run["area"]) for run in found}
    table = WEIGHT.split("| mean return over the budget | baseline | infonce | uncentred |")[1]
    header, *rows = (line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines())
    shown = {}
    for place, *values in rows[1:]:
        game, seed = place.split(", seed ")
        for arm, value in zip(["baseline", "infonce", "uncentred", *header], values, strict=True):
            if value != "-":
                shown[game, seed, arm] = value
    assert shown == {key: f"{area:,.0f}" for key, area in runs.items()}


def test_another_seed_of_breakout_comes_from_the_committed_runs() -> None:
    runs = {run["arm"]: run for run in committed_runs("breakout_arms")}
    assert {(run["game"], run["seed"]) for run in runs.values()} == {("breakout", "100")}
    header = "| mean return over the budget | baseline | infonce | ratio_01 |\n|---|---|---|---|"
    cells = [f"{float(runs[arm]['area']):.2f}" for arm in ("baseline", "infonce", "ratio_01")]
    assert f"{header}\n| breakout, seed 100 | {' | '.join(cells)} |\n" in WEIGHT
    page = study_words("infonce_coef.md")
    variance = "train/explained_variance"
    off, on, bounded = (
        f"{_logged_on_breakout(arm, variance, 20_000, 40_000):.2f}"
        for arm in ("baseline", "infonce", "ratio_01")
    )
    assert f"{off} of the returns' variance in the baseline, {on} with 0.01 and {bounded}" in page
    early = _logged_on_breakout("infonce", "infonce/grad_ratio", 0, 20_000)
    late = _logged_on_breakout("infonce", "infonce/grad_ratio", 20_000, 201_000)
    assert f"`grad_ratio` is {early:.2f} over the first 20,000 steps and {late:.2f} later" in page


def _logged_on_breakout(arm: str, name: str, after: int, until: int) -> float:
    """Return the mean of what a run of breakout_arms.toml logged in an interval of steps."""
    path = RESULTS / "breakout_arms" / "cells" / f"breakout-ppo-{arm}-100" / "progress.csv"
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row[name]]
    found = [float(row[name]) for row in rows if after < float(row["step"]) <= until]
    return sum(found) / len(found)


@pytest.mark.thorough
def test_ten_seeds_of_minatar_come_from_the_committed_runs() -> None:
    minatar = load("minatar_arms.py")
    for of in minatar.SCORES:
        assert minatar.table(minatar.REPORTED, RESULTS / "minatar_arms", of) in study_page(
            "minatar_arms/README.md"
        )
    found = minatar.scores(minatar.REPORTED, RESULTS / "minatar_arms", "mean over training")
    assert len(found) == 6
    assert all(sorted(seeds) == list(range(10)) for seeds in found.values())
    commits = {
        json.loads(path.read_text())["git_commit"]
        for path in (RESULTS / "minatar_arms").glob("*.json")
    }
    assert len(commits) == 1, "one version trained them"
    rows = minatar.table(minatar.REPORTED, RESULTS / "minatar_arms", "mean over training")
    page = study_words("minatar_arms/README.md")
    for name, words in (
        ("breakout", "On Breakout a true loss of {}"),
        ("space_invaders", "Space Invaders one of {}"),
    ):
        (row,) = (r.split(" | ") for r in rows.splitlines() if f"| {name} | infonce" in r)
        mean = sum(found[name, "baseline"].values()) / 10
        assert words.format(f"{float(row[5]) / mean:.0%}".replace("%", " %")) in page


@pytest.mark.thorough
@pytest.mark.slow
def test_the_weights_tried_on_minatar_come_from_the_committed_runs() -> None:
    minatar = load("minatar_arms.py")
    for of in minatar.SCORES:
        table = minatar.table(minatar.CHOOSING, RESULTS / "minatar_candidates", of)
        assert table in WEIGHT
    rows = minatar.table(minatar.CHOOSING, RESULTS / "minatar_candidates", "mean over training")
    split = [row.split(" | ") for row in rows.splitlines() if row.startswith("| breakout")]
    cells = {row[1]: row for row in split}
    page = " ".join(FRONT_PAGE.split())
    at_01, at_001 = (cells[arm][4].replace("+", "") for arm in ("coef_01", "coef_001"))
    means = (cells[arm][3].split(" ")[0] for arm in ("coef_01", "baseline"))
    shown = at_01.replace(" (", ", ").rstrip(")")
    assert f"({' against '.join(means)}; difference {shown}, five seeds)" in page
    assert f"({at_001.replace(' (', ', ')}" in page
    found = minatar.scores(minatar.CHOOSING, RESULTS / "minatar_candidates", "mean over training")
    assert all(sorted(seeds) == list(minatar.CHOOSING.seeds) for seeds in found.values())

    def less(arm: str, other: str) -> dict[str, list[float]]:
        ours, theirs = found["breakout", arm], found["breakout", other]
        return {"breakout": [ours[seed] - theirs[seed] for seed in sorted(ours)]}

    page = study_words("infonce_coef.md")
    clipped, unclipped = less("coef_01", "baseline"), less("unclipped_01", "unclipped_0")
    for words, ours, theirs in (
        (
            "most of all, {} beside the same loss in RL's",
            less("decoupled_01", "coef_01"),
            {"breakout": [0] * 5},
        ),
        ("which is less by {}. At 0.01", unclipped, clipped),
    ):
        interval = t_difference(ours, theirs)
        assert words.format("{:.2f} ({:+.2f} to {:+.2f})".format(*interval)) in page


def test_the_weights_tried_on_labelled_games_come_from_the_committed_report() -> None:
    report = (RESULTS / "coefficient_arms" / "report.md").read_text().split("game by game\n\n")[1]
    header, line, *rows = report.splitlines()
    means = [row for row in rows if ": mean |" in row]
    assert len(means) == 4
    assert "\n".join([header, line, *means]) in WEIGHT
    gains = []
    for arm in ("coef_01", "coef_001", "ratio_01_of_001", "coef_0001"):
        runs = committed_runs("coefficient_arms")
        f1 = {(run["game"], run["arm"]): float(run["f1_converged"]) for run in runs}
        games = {game for game, _ in f1}
        gains.append(sum(f1[game, arm] - f1[game, "baseline"] for game in games) / len(games))
    at_01, at_001, bounded, at_0001 = (f"{gain:.3f}" for gain in gains)
    page = study_words("infonce_coef.md")
    assert (
        f"adds {at_01} to the baseline's mean F1 at 0.1 and {at_001} at 0.01; {bounded} at" in page
    )
    assert f"within a tenth of RL's gradient, {at_0001} at 0.001" in page
    assert f"gain {at_001} in F1 at 0.01, and {at_01} at 0.1" in FRONT_PAGE


def test_the_first_seed_at_the_former_weight_comes_from_the_committed_cells() -> None:
    lines = load("ppo_arms.py").table(RESULTS / "ppo_arms_coef_01").splitlines()
    shown = WEIGHT.split("at version f78b8a0")[1].split("With the loss Breakout loses")[0]
    rows = [line for line in shown.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == 15
    for row in rows:
        assert row in (line.replace(", 1 of 3 seeds", "") for line in lines)
    live = committed("ppo_arms_coef_01/live_features.json")
    assert load("live_features.py").table(live["cells"]) in WEIGHT


def test_the_terms_tried_on_labelled_games_come_from_the_committed_runs() -> None:
    f1: dict[tuple[str, str], float] = {}
    for folder in ("coefficient_arms", "term_arms", "rectified_arms"):
        runs = committed_runs(folder)
        f1 |= {(run["game"], run["arm"]): float(run["f1_converged"]) for run in runs}
    arms = [
        *("baseline", "coef_001", "stdim_001", "positional_001", "pre_001"),
        *("coef_01", "pre_01"),
    ]
    assert f"| converged F1 | untrained | {' | '.join(arms)} |" in WEIGHT
    report = (RESULTS / "term_arms" / "report.md").read_text().splitlines()
    for game in ("boxing", "demon_attack"):
        (row,) = (
            line for line in report if line.startswith(f"| {game}: mean | 0.") and "(" not in line
        )
        untrained = row.split(" | ")[2]
        found = " | ".join(f"{f1[game, arm]:.3f}" for arm in arms)
        assert f"| {game} | {untrained} | {found} |" in WEIGHT


def test_other_causes_come_from_the_committed_report_and_widths() -> None:
    folder = RESULTS / "decoupled_arms"
    report = (folder / "report.md").read_text()
    shown = WEIGHT.split("## What else might keep")[1].split("## One more seed of Atari's")[0]
    widths = load("live_features.py").width_table(
        committed("decoupled_arms/feature_width.json")["cells"]
    )
    assert widths in shown
    rows = [line for line in shown.replace(widths, "").splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4 + 2 + 5 + 2 + 6
    known = report.split("## PPO: what the features know (converged), compared")[1].splitlines()
    assert [row for row in rows if row not in known] == []
    text = " ".join(shown.split())
    differences = {tuple(row.split(" | ")[:1]): row.split(" | ")[2] for row in rows[8:13]}
    assert f"there again, {differences[('| infonce',)]};" in text
    against_untrained = {row.split(" | ")[0]: row.split(" | ")[1] for row in rows[15:]}
    assert {arm for arm, words in against_untrained.items() if words == "lower"} == {
        "| horizon_8",
        "| unclipped",
    }
    assert "higher" not in against_untrained.values()
    by_arm = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in widths.splitlines()[2:]}
    assert f"lose {by_arm['infonce'][7][1:7]} of the {by_arm['infonce'][6][1:7]}." in text
    assert f"untrained ones ({by_arm['decoupled'][8]})" in text
    boxing: dict[str, list[float]] = {}
    for run in committed_runs("decoupled_arms"):
        if run["game"] == "boxing":
            boxing.setdefault(run["arm"], []).append(float(run["area"]))
    own, stock, slow = (
        f"{sum(boxing[arm]) / len(boxing[arm]):.1f}"
        for arm in ("decoupled", "baseline", "decoupled_slow")
    )
    assert f"({own} against {stock} points, {slow} at a tenth of the rate)" in text


def test_kills_cost_an_interval_and_nothing_else_in_the_committed_run() -> None:
    kills = load("kills.py")
    found = committed("kills.json")
    assert kills.table(found) in study_page("kills.md")
    assert found["counts"].keys() == kills.RUNS.keys()
    assert sum(counts["kills"] for counts in found["counts"].values()) == 200
    for counts in found["counts"].values():
        assert counts["runs_equal"] == counts["runs"]
        assert counts["refused"] == counts["stray_files"] == 0
        assert counts["most_steps_lost"] <= counts["steps_between_checkpoints"] + 3


def test_only_time_finds_the_dot_in_the_committed_run() -> None:
    dot = load("moving_dot.py")
    for name in ("moving_dot.json", "moving_dot_again.json"):
        outcomes = committed(name)
        assert dot.table(outcomes) in study_page("moving_dot.md")
        assert list(outcomes) == list(dot.ARMS)
        f1 = {arm: [each["f1_weighted"] for each in found] for arm, found in outcomes.items()}
        assert min(f1["stdim"]) > 0.95 > 0.5 > max(f1["static_dim"])
        means = [np.mean(f1[arm]) for arm in dot.ARMS]
        assert means == sorted(means)
    assert max(each["seconds"] for each in committed("moving_dot.json")["stdim"]) < 60


def test_the_table_of_pretrained_encoders_comes_from_the_committed_cells() -> None:
    stdim_table = load("stdim_table.py")
    table = stdim_table.table(RESULTS / "stdim_table")
    assert table in study_page("stdim_table/README.md")
    assert "missing" not in table
    assert "mean of 3" in table
    for protocol in stdim_table.PROTOCOLS:
        found = stdim_table.read(RESULTS / "stdim_table", protocol)
        for game in PRETRAINED_GAMES:
            (ours,), (stdim,) = (found[game, name] for name in ("positional_dim", "stdim"))
            assert ours.mean.f1_weighted > stdim.mean.f1_weighted, (game, protocol)


def test_the_states_seen_in_pretraining_come_from_the_committed_run() -> None:
    stdim_table = load("stdim_table.py")
    content = committed("stdim_seen.json")
    assert tuple(content["games"]) == PRETRAINED_GAMES
    assert stdim_table.seen_table(content) in study_page("stdim_table/README.md")
    sizes = stdim_table.Sizes()
    assert content["n_frames"] == sizes.n_frames
    assert content["n_probe_frames"] == sizes.n_probe_frames


def test_the_tables_of_ppo_on_a_pretrained_encoder_come_from_the_committed_runs() -> None:
    frozen_ppo = load("frozen_ppo.py")
    for name, study in (("boxing", "frozen_boxing"),):
        output = RESULTS / "frozen_ppo" / name
        table = frozen_ppo.table(output, np.random.default_rng(0))
        assert table in study_page("frozen_ppo/README.md")
        planned = frozen_ppo.read_study(EXPERIMENTS / f"{study}.toml")
        runs = frozen_ppo.read_runs(output)
        assert set(runs) == set(itertools.product(planned.games, planned.arms, planned.seeds))
        assert {run["n_steps"] for run in runs.values()} == {planned.n_steps}


def test_memory_and_files_are_flat_in_the_committed_soak() -> None:
    soak = load("soak.py")
    found = committed("soak.json")
    assert soak.table(found) in study_page("soak.md")
    notes = found["notes"]
    assert notes[-1]["seconds"] > 1790
    assert abs(soak.slope(notes, "in_use_mb")) < 30
    assert notes[-1]["n_files"] == notes[len(notes) // 2]["n_files"]


def test_fuzzing_found_no_undocumented_error_in_the_committed_run() -> None:
    fuzz = load("fuzz.py")
    formats = committed("fuzz.json")["formats"]
    assert fuzz.table(formats) in study_page("fuzz.md")
    assert list(formats) == list(fuzz.FORMATS)
    assert all(found["is_clean"] for found in formats.values())


def test_what_no_test_notices_is_explained() -> None:
    modules = committed("mutation.json")["modules"]
    page = study_page("mutation.md")
    assert load("mutation.py").table(modules) in page
    changes = [noticed for found in modules.values() for noticed in found.values()]
    assert f"Of {len(changes)} changes {sum(changes)} are noticed" in page
    index = (EXPERIMENTS / "README.md").read_text()
    assert f"| {sum(changes)} of {len(changes)} changes noticed |" in index
    rows = [line for line in page.splitlines() if ".py | " in line]
    survivors = [key for found in modules.values() for key, noticed in found.items() if not noticed]
    assert len(rows) == len(survivors)
    for key in survivors:
        number, _, change = key.partition(": ")
        after = change.rpartition(" -> ")[2].strip().replace("|", "\\|")
        assert any(f"| {number} | " in row and after in row for row in rows), key


def test_the_differences_of_ranks_come_from_the_committed_run() -> None:
    distributed = load("distributed.py")
    runs = committed("distributed.json")["after_steps"]
    for table in (
        distributed.table(runs["3"], "fp32"),
        distributed.table(runs["3"], "bf16"),
        distributed.speed_table(runs["6"]),
    ):
        assert table in study_page("distributed.md")
    found = runs["3"]["differences"]
    assert set(found) == set(OBJECTIVES)
    for arms in found.values():
        for n in (2, 4):
            assert max(arms[f"fp32, {n} ranks"][each] for each in ("loss", "weight")) < 1e-5
            own, alone = arms[f"bf16, {n} ranks"], arms["bf16 for fp32"]
            assert all(own[each] < alone[each] for each in own)
    first = max(
        arms[f"bf16, {n} ranks"]["first gradient"] for arms in found.values() for n in (2, 4)
    )
    assert f"the first one differs by up to {first:.0e}" in study_words("distributed.md")
    longer = runs["6"]["differences"]
    of_ranks, alone = (
        (longer["cpc"][arm]["weight"], longer["infonce"][arm]["loss"])
        for arm in ("fp32, 4 ranks", "fp32, in parts")
    )
    assert (
        f"the weights of `cpc` differ by {of_ranks[0]:.0e} between 1 and 4 ranks and a loss of "
        f"`infonce` by {of_ranks[1]:.0e}, and those of the control by {alone[0]:.0e} and "
        f"{alone[1]:.0e}"
    ) in study_words("distributed.md")


def test_training_is_no_slower_than_stock_in_the_committed_run() -> None:
    median = committed("train_speed.json")["median"]
    assert median["fp32"]["speed_ratio"] >= 1.0
    assert median["fp32_minibatch"]["speed_ratio"] >= 1.3
    assert median["bf16"]["speed_ratio"] >= 1.4
    assert max(arm["memory_ratio"] for arm in median.values()) <= 1.3


@pytest.mark.parametrize("path", sorted((RESULTS / "pong_curve").glob("default-*.csv")), ids=str)
def test_on_pong_the_default_learns_more_than_both_floors(path: Path) -> None:
    script = load("pong_curve.py")
    assert script.reduced(path) == path.read_text(), "what is reduced already stays as it is"
    curves = script.read(path)
    end = {name: script.end_of(values, 5) for name, values in curves.items()}
    assert curves["step"][-1] <= 51_000
    assert end["loss"] < end["mi_ceiling"] / 4
    assert end["accuracy_k4"] > max(end["floor_pixels_k4"], end["floor_random_k4"])


def test_the_untrained_encoder_beside_the_papers_comes_from_the_committed_scores() -> None:
    content = committed("probe_table/scores.json")
    names = {key: entry["name"] for key, entry in content["encoders"].items()}
    for game in ("boxing", "breakout", "pong"):
        cells = []
        for name, method in (("random", "random-cnn"), ("majority", "maj-clf")):
            for protocol in ("anand2019", "converged"):
                means = [
                    cell["scores"]["mean"]["f1_weighted"]
                    for cell in content["cells"]
                    if (cell["game"], names[cell["encoder"]], cell["protocol"])
                    == (game, name, protocol)
                ]
                assert len(means) == 3
                spread = f" ({min(means):.3f} to {max(means):.3f})" if name == "random" else ""
                cells.append(f"{sum(means) / 3:.3f}{spread}")
            cells.insert(len(cells) - 2, f"{published_scores(game)[method]:.2f}")
        assert f"| {game} | {' | '.join(cells)} |" in study_page("probe_table/README.md")


def test_breakout_with_all_lives_comes_from_the_committed_scores() -> None:
    content = committed("probe_table_all_episodes/scores.json")
    names = {key: entry["name"] for key, entry in content["encoders"].items()}
    means: dict[str, list[float]] = {"random": [], "majority": []}
    for cell in content["cells"]:
        assert (cell["game"], cell["protocol"]) == ("breakout", "anand2019")
        assert len(cell["scores"]["variables"]) == 5
        means[names[cell["encoder"]]].append(cell["scores"]["mean"]["f1_weighted"])
    assert [len(each) for each in means.values()] == [3, 3]
    random, majority = means.values()
    published = published_scores("breakout")
    assert (
        f"| breakout, all lives | {published['random-cnn']:.2f} "
        f"| {sum(random) / 3:.3f} ({min(random):.3f} to {max(random):.3f}) | - "
        f"| {published['maj-clf']:.2f} | {sum(majority) / 3:.3f} | - |"
    ) in study_page("probe_table/README.md")


def test_what_the_page_says_of_breakouts_frames_comes_from_the_committed_scores() -> None:
    content = committed("probe_table/scores.json")
    found = {
        (
            cell["protocol"],
            sum(cell["scores"]["n_frames"].values())
            + cell["scores"]["settings"]["data"]["n_test_duplicates"],
            len(cell["scores"]["variables"]),
        )
        for cell in content["cells"]
        if cell["game"] == "breakout"
    }
    assert found == {("anand2019", 18_843, 7), ("converged", 50_000, 5)}
    assert "18,843 of 50,000 frames are left, 7 variables pass" in study_words(
        "probe_table/README.md"
    )
