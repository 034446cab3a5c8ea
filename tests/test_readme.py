"""What the pages print works as printed, and names what there is."""

import ast
import inspect
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stable_baselines3
import torch
from stable_baselines3 import PPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCEExtractor, nce
from rl_infonce.cli import main, make_parser
from rl_infonce.cli.pretrain import encoder_plan
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.presets import PRESETS, settings_table
from rl_infonce.pretraining import OBJECTIVES
from rl_infonce.probing.anand2019 import Anand2019
from rl_infonce.probing.converged import PENALTY_PATIENCE, Converged
from rl_infonce.probing.data import N_CLASSES
from rl_infonce.probing.neighbours import knn_predictions
from rl_infonce.probing.task import make_task
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.sb3.arguments import ExtractorArguments
from rl_infonce.sb3.input_selection import CHANCE, KEPT_SHARE, InputSelection
from rl_infonce.sb3.own_updates import ALIGN_FREQ, N_ALIGNED
from rl_infonce.sb3.update_counts import RARE_DETAILS_FREQ
from rl_infonce.scoring.probe_runner import TASKS
from rl_infonce.settings import InfoNCESettings, declared, defaults
from rl_infonce.sweeps.arms import ARMS
from rl_infonce.sweeps.grid import read_grid
from rl_infonce.sweeps.search import STUDY_SETTINGS
from rl_infonce.sweeps.settings_check import PROBE_SETTINGS, SETTINGS
from rl_infonce.training.plan import TrainingPlan
from tests.further import further

ROOT = Path(__file__).parents[1]
README = "README.md"
SB3 = "rl_infonce/sb3/README.md"
CURVES = "rl_infonce/sb3/CURVES.md"
VECTORS = "rl_infonce/sb3/VECTORS.md"
RUNS = "rl_infonce/runs/README.md"
PRETRAINING = "rl_infonce/pretraining/README.md"
SWEEPS = "rl_infonce/sweeps/README.md"


def pages_below(folder: str) -> list[str]:
    return sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob(f"{folder}/**/*.md"))


PAGES = [README, *pages_below("rl_infonce")]
LINKED_PAGES = [
    *PAGES,
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *pages_below("experiments"),
]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str) -> list[tuple[str, str]]:
    """Return language and text of every block of a page."""
    pattern = r"^```(\w*)\n(.*?)^```$"
    return re.findall(pattern, text_of(page), flags=re.DOTALL | re.MULTILINE)


def blocks(language: str, page: str) -> list[str]:
    return [text for its_language, text in fences(page) if its_language == language]


def section(title: str, page: str) -> str:
    return re.split(r"^## ", text_of(page).split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def first_cells(text: str) -> str:
    return "\n".join(re.findall(r"^\| (`.*?)\|", text, flags=re.MULTILINE))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command of `rl-infonce` that a page shows, without the program's name."""
    for page in PAGES:
        for language, text in fences(page):
            if language not in ("", "bash", "sh"):
                continue
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for program in {"rl-infonce", "rl_infonce"} & set(words):
                    yield page, words[words.index(program) + 1 :]


def small(block: str, n_steps: int) -> str:
    """Shrink the budget of a python block, and nothing else."""
    shrunk = r'PPO("\1Policy", n_steps=64, n_epochs=4, env='
    block = re.sub(r'PPO\(\s*"(Cnn|Mlp)Policy",', shrunk, block)
    return re.sub(r"(?<=learn\()[\d_]+", str(n_steps), block).replace("n_envs=8", "n_envs=2")


def run_block(block: str, n_steps: int = 128) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(small(block, n_steps), "python block", "exec"), names)
    return names


def check_trained_with_the_loss(model: Any) -> None:
    (extractor,) = {
        module
        for module in model.policy.modules()
        if isinstance(module, InfoNCEExtractor) and module.last_infonce
    }
    assert extractor.last_infonce["loss"] > 0


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# -- pages and their blocks ------------------------------------------------------------------------


def test_the_first_pages_are_short() -> None:
    assert len(text_of(README).splitlines()) <= 170
    assert len(text_of("experiments/README.md").splitlines()) <= 120


def test_the_first_page_begins_with_the_two_commands() -> None:
    assert [language for language, _ in fences(README)] == ["bash", "python", "python", "bash"]


def test_the_first_page_leads_to_the_page_of_every_room() -> None:
    rooms = {page for page in PAGES if page.endswith("/README.md")}
    assert rooms <= set(re.findall(r"\]\(([^)#]+)", text_of(README)))


@pytest.mark.parametrize("page", [page for page in PAGES if page.endswith("README.md")])
def test_a_page_opens_with_an_example(page: str) -> None:
    before = text_of(page).split("\n```")[0]
    assert len(before.splitlines()) <= 16
    assert "\n## " not in before


def test_parts_of_ones_own_stand_in_a_few_lines() -> None:
    examples = blocks("python", "rl_infonce/sb3/YOUR_OWN.md")
    assert len(examples) == 3
    assert max(len(each.splitlines()) for each in examples) <= 25


@pytest.mark.atari
def test_the_example_of_images_trains_with_the_loss_and_draws_every_curve(tmp_path: Path) -> None:
    # Curves of an update are written one rollout later.
    names = run_block(blocks("python", README)[1], n_steps=256)
    check_trained_with_the_loss(names["model"])
    (written,) = (tmp_path / "logs").iterdir()
    tags = set(EventAccumulator(str(written)).Reload().Tags()["scalars"])
    explained = set(re.findall(r"`(\w+)`", first_cells(text_of(CURVES))))
    # `n_nonfinite` is there only if something went wrong, and `selected_inputs` on vectors.
    assert {tag for tag in tags if tag.startswith("infonce/")} == {
        f"infonce/{name}" for name in explained - {"n_nonfinite", "selected_inputs"}
    }


def test_the_example_of_vectors_trains_with_the_loss_and_draws_the_curves_of_its_own(
    tmp_path: Path,
) -> None:
    names = run_block(blocks("python", README)[0], n_steps=256)
    check_trained_with_the_loss(names["model"])
    (written,) = (tmp_path / "logs").iterdir()
    tags = set(EventAccumulator(str(written)).Reload().Tags()["scalars"])
    assert {"infonce/accuracy_k1", "infonce/floor_observations_k1"} <= tags
    assert not any(tag.startswith("infonce/grad") for tag in tags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{page}-{index}",
            marks=[pytest.mark.atari] * ("make_atari_vec_env" in block)
            + [pytest.mark.thorough] * ('ProbeCallback("' in block),
        )
        for page in PAGES[1:]
        for index, block in enumerate(blocks("python", page))
        if "use_encoder" not in block and "load_frames" not in block
    ],
)
def test_python_blocks_run_and_train_what_they_say(block: str) -> None:
    # Of vectors, the updates of a rollout come when the next one begins.
    names = run_block(block, n_steps=256 if "MlpPolicy" in block else 128)
    if ".learn(" in block:
        check_trained_with_the_loss(names["model"])
    if "requires_grad=True" in block:
        trained = [each for each in names.values() if getattr(each, "requires_grad", False)]
        assert any(each.is_leaf and each.grad is not None and each.grad.any() for each in trained)


def test_other_listeners_hear_every_number() -> None:
    heard: dict[int, dict[str, float]] = {}
    mlflow = SimpleNamespace(log_metrics=lambda numbers, step: heard.update({step: numbers}))
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32)
    (block,) = blocks("py", CURVES)
    exec(block, {"stable_baselines3": stable_baselines3, "mlflow": mlflow, "model": model})
    model.learn(64)
    model.logger.close()
    assert list(heard) == [32, 64]
    assert {"train/loss", "time/iterations"} <= heard[64].keys()


@pytest.mark.atari
def test_the_pretrained_encoder_is_used() -> None:
    pretrain, train, _ = (words for page, words in commands() if page == PRETRAINING)
    path = Path("pretrained", encoder_plan(make_parser().parse_args(pretrain)).name)
    used = path / "encoder.safetensors"
    assert make_parser().parse_args(train).pretrained == used
    path.mkdir(parents=True)
    encoder = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(0))
    save_encoder(encoder, used)
    (block,) = blocks("python", PRETRAINING)
    weight = run_block(block)["model"].policy.features_extractor.cnn[0].weight
    assert torch.equal(weight, encoder.state_dict()["cnn.0.weight"])


@pytest.mark.atari
@pytest.mark.slow
@pytest.mark.parametrize("game", ["frogger", further("pong")])
def test_examples_read_frames_that_were_collected(
    game: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"frogger": "rl_infonce/atari/README.md", "pong": "rl_infonce/scoring/README.md"}[game]
    (block,) = (each for each in blocks("python", page) if f'load_frames("frames/{game}")' in each)
    assert main(["collect", "--game", game, "-n", "2500", "-o", f"frames/{game}"]) == 0
    for name, seed in (("one", 0), ("other", 1)):
        made = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(seed))
        save_encoder(made, f"{name}.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few games
        names = run_block(block)
    if game == "frogger":
        assert len(names["callback"].labelled.observations) == 2500
    else:
        assert "F1Difference(" in capsys.readouterr().out


def test_the_grid_shown_is_one_that_a_sweep_takes(tmp_path: Path) -> None:
    (block,) = blocks("toml", SWEEPS)
    (tmp_path / "grid.toml").write_text(block)
    assert read_grid(tmp_path / "grid.toml").settings["strong"]["infonce_coef"] == 1


# -- tables ----------------------------------------------------------------------------------------


def printed_defaults(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| `(.+?)`", text, flags=re.MULTILINE))


def check_defaults(printed: Mapping[str, str]) -> None:
    """Compare defaults with those of the first preset or, where it has none, of the extractor."""
    parameters = inspect.signature(InfoNCEExtractor).parameters
    for name, default in printed.items():
        expected = getattr(PRESETS["cpc"], name, parameters[name].default)
        assert ast.literal_eval(default) == expected, name


def test_the_settings_of_the_first_page_are_those_of_the_code() -> None:
    options = section("Options", README)
    printed = printed_defaults(options)
    assert len(printed) == 6
    check_defaults(printed)
    (presets,) = (line for line in options.splitlines() if line.startswith("| `preset`"))
    assert set(re.findall(r'`"(\w+)"`', presets)) == set(PRESETS)


def test_presets_and_settings_are_those_of_the_code() -> None:
    settings = section("Settings", SB3)
    table = settings_table(ExtractorArguments)
    missing = [row for row in table.splitlines() if row not in settings.splitlines()]
    rows = "\n".join(missing)
    assert not missing, f"Expected these rows also in the table of {SB3}, or changed there:\n{rows}"
    assert table in settings, f"Expected the rows of {SB3} in this order:\n{table}"
    presets = re.findall(r'^\| `"(\w+)"`', settings, flags=re.MULTILINE)
    assert presets == list(PRESETS)


def test_the_objectives_explained_are_those_there_are() -> None:
    explained = re.findall(r"`(\w+)`", first_cells(section("Objectives", PRETRAINING)))
    assert sorted(explained) == sorted(OBJECTIVES)


def test_the_losses_explained_are_those_there_are() -> None:
    explained = re.findall(
        r"`(\w+)`", first_cells(section("Which loss", "rl_infonce/nce/README.md"))
    )
    modules = ("rl_infonce.nce.losses", "rl_infonce.nce.noise_contrastive")
    losses = {
        name for name in nce.__all__ if getattr(getattr(nce, name), "__module__", "") in modules
    }
    assert set(explained) == losses - {"effective_sample_size"}


def test_the_papers_that_losses_come_from_are_listed() -> None:
    cited = {
        found
        for path in (ROOT / "rl_infonce/nce").glob("*.py")
        for found in re.findall(
            r"([A-Z]\w+)(?: et\s+al\.| & [A-Z]\w+)?\s+((?:19|20)\d\d)", path.read_text()
        )
    }
    listed = section("References", "rl_infonce/nce/README.md")
    assert len(cited) > 20
    missing = {each for each in cited if not re.search(r"{}[^\n]*{}".format(*each), listed)}
    assert not missing


def test_the_two_protocols_are_those_of_the_code() -> None:
    page = section("Two protocols", "rl_infonce/scoring/README.md")
    ours, theirs = Converged(), Anand2019()
    first, last = ours.penalties[0], ours.penalties[-1]
    waits = {1: "one", 3: "three"}[PENALTY_PATIENCE]
    assert f"of {len(ours.penalties)} from {first:g} to {last:.0e}".replace("e-0", "e-") in page
    assert f"{waits} in a row without a lower one end the search" in page
    rate = f"{theirs.learning_rate:.0e}".replace("e-0", "e-")
    assert f"Adam at {rate}, with {theirs.batch_size} frames a step" in page
    assert f"when {theirs.plateau_patience + 1} epochs in a row bring no higher" in page
    assert (
        f"after {theirs.patience} epochs without a higher accuracy or {theirs.max_epochs}" in page
    )
    assert f"`Linear(D, {N_CLASSES})`" in page
    of_task, of_probe = inspect.signature(make_task).parameters, TASKS["anand2019"]
    assert f"at least {of_task['threshold'].default} nats of entropy in the training part" in page
    assert f"those of {of_probe['min_episode_length']} frames or more" in page
    assert '`entropy_on="{entropy_on}"`'.format(**of_probe) in page
    nearest = inspect.signature(knn_predictions).parameters["n_neighbours"].default
    assert f"the majority of the {nearest} nearest training frames" in page


def test_what_an_unmarked_bound_may_miss_is_that_of_the_experiment() -> None:
    study = text_of("experiments/results/theory/gaussian_information.md")
    (shown,) = re.findall(r"^\| 64 \(.*?\) \| 6 \| (\S+) ", study, flags=re.MULTILINE)
    page = section("Beside the losses", "rl_infonce/nce/README.md")
    assert f"N = 64, 6 nats show as {shown}." in page


def test_the_arms_explained_are_those_there_are() -> None:
    explained = re.findall(r"`(\w+)`", first_cells(section("Arms", SWEEPS)))
    assert sorted(explained) == sorted(ARMS)


def test_the_keys_of_a_grid_are_those_of_the_code() -> None:
    page = text_of("rl_infonce/sweeps/GRID.md")
    rows = re.findall(r"^\| `\[(.*?)\]`.*?\| (.*) \|$", page, flags=re.MULTILINE)
    explained = {table: set(re.findall(r"`([a-z_]+)`", keys)) for table, keys in rows}
    of_loss = [*declared(InfoNCESettings)]
    first, last = of_loss[0], of_loss[-1]
    ends = f"from `{first}` to `{last}`"
    for text, where in ((page, "GRID.md"), (text_of(SB3), SB3)):
        assert ends in text, f"Say {ends!r} on {where}: these are the first and the last setting."
    assert explained["train"] | {*of_loss} == set(SETTINGS)
    assert explained["probe"] == set(PROBE_SETTINGS)
    assert explained["study"] | {"search"} == set(STUDY_SETTINGS)


def test_the_tests_of_faults_exist() -> None:
    named = re.findall(r"`(tests/.*?)`", text_of("rl_infonce/runs/FAULTS.md"))
    assert len(set(named)) > 5
    assert all((ROOT / name).is_file() for name in named)


# -- commands and links ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{page}: {shlex.join(words)}") for page, words in commands()]
)
def test_commands_are_ones_the_command_line_takes(words: list[str]) -> None:
    if any(word.startswith("dm_control/") for word in words):
        pytest.importorskip("dm_control")
    assert make_parser().parse_args(words).run


def test_the_first_command_trains() -> None:
    command = shlex.split(blocks("bash", README)[0].splitlines()[-1])
    assert command[0] == "rl-infonce"
    assert make_parser().parse_args(command[1:]).game == "pong"


def test_the_first_command_installs_the_pinned_versions_here() -> None:
    (install,) = [
        line for line in blocks("bash", README)[0].splitlines() if line.startswith("pip ")
    ]
    words = shlex.split(install)
    assert words[-1] == "."
    assert (ROOT / words[words.index("-c") + 1]).is_file()


def test_ci_runs_exactly_the_second_command() -> None:
    command = blocks("bash", README)[1].strip()
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == f"exec {command}"
    assert (ROOT / command.removeprefix("bash ")).is_file()


def test_the_second_command_runs_every_check() -> None:
    script = text_of("tests/run.sh")
    for check in ("ruff format --check .", "ruff check .", "mypy", "lint-imports", "pytest"):
        assert re.search(rf"^(OMP_NUM_THREADS=1 )?{re.escape(check)}", script, flags=re.MULTILINE)
    assert "--group test" in script


@pytest.mark.parametrize("page", LINKED_PAGES)
def test_links_lead_somewhere(page: str) -> None:
    shown = re.sub(r"<!--.*?-->", "", text_of(page), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", shown):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.is_file(), link
        text = target.read_text(encoding="utf-8") if anchor else ""
        # Comments in blocks are no headings.
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
        assert not anchor or anchor in anchors, link


def test_the_pages_name_the_constants_of_the_code() -> None:
    vectors, curves, runs = (" ".join(text_of(page).split()) for page in (VECTORS, CURVES, RUNS))
    fifths = {0.8: "four fifths"}[KEPT_SHARE]
    assert f"earlier evidence counts {fifths} at each" in vectors
    assert f"about one of a { ({0.001: 'thousand'}[CHANCE]) } decisions" in vectors
    thresholds = [f"{InputSelection(n).least_z:.1f} for {n}" for n in (3, 145)]
    assert "{} inputs, and {}.".format(*thresholds) in vectors
    assert f"every {ALIGN_FREQ} updates" in vectors
    assert f"on up to {N_ALIGNED} observations" in vectors
    assert f"floors are taken at every {RARE_DETAILS_FREQ}th update" in curves
    freq = inspect.signature(ResumeCallback).parameters["save_freq"].default
    assert f"every {freq:,} calls of `env.step` (`save_freq`)" in runs
    assert f"every {defaults(TrainingPlan)['save_freq']:,} agent steps" in runs
