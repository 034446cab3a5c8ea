"""What the README prints works as printed, and names what there is."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stable_baselines3
import torch
from stable_baselines3 import PPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCEExtractor, nce
from rl_infonce.cli import make_parser
from rl_infonce.cli.pretrain import encoder_plan
from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import OBJECTIVES
from rl_infonce.settings import PRESETS, InfoNCESettings
from rl_infonce.sweeps.search import STUDY_SETTINGS
from rl_infonce.sweeps.settings_check import PROBE_SETTINGS, SETTINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAULTS = ROOT / "rl_infonce" / "runs" / "FAULTS.md"
GRID = ROOT / "rl_infonce" / "sweeps" / "GRID.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return re.split(r"^## ", README.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def small(block: str, n_steps: int) -> str:
    """Shrink the budget, and nothing else, of a python block."""
    block = re.sub(r'PPO\(\s*"CnnPolicy",', 'PPO("CnnPolicy", n_steps=64, n_epochs=4, env=', block)
    block = block.replace('ProbeCallback("pong")', 'ProbeCallback("pong", n_frames=1000)')
    return re.sub(r"(?<=learn\()[\d_]+", str(n_steps), block).replace("n_envs=8", "n_envs=2")


def test_the_first_blocks_are_the_two_commands() -> None:
    assert re.findall(r"^```(\w+)$", README, flags=re.MULTILINE)[:3] == ["bash", "bash", "python"]
    assert len(blocks("bash")) == 2


def curves_below(folder: Path) -> set[str]:
    (written,) = folder.iterdir()
    return set(EventAccumulator(str(written)).Reload().Tags()["scalars"])


@pytest.mark.atari
@pytest.mark.parametrize(
    "index", [i for i, block in enumerate(blocks("python")) if ".learn(" in block]
)
def test_python_blocks_run_and_train_with_the_loss(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    # Curves of an update are written one rollout later.
    block = small(blocks("python")[index], 256 if index == 0 else 128)
    exec(compile(block, f"README python {index}", "exec"), names)
    (extractor,) = {
        module
        for module in names["model"].policy.modules()  # type: ignore[attr-defined]
        if isinstance(module, InfoNCEExtractor) and module.last_infonce
    }
    assert extractor.last_infonce["loss"] > 0
    if index == 0:
        explained = re.findall(r"^\| (`.*?)\|", section("Reading the curves"), flags=re.MULTILINE)
        names_explained = set(re.findall(r"`(\w+)`", " ".join(explained)))
        seen = {tag for tag in curves_below(tmp_path / "logs") if tag.startswith("infonce/")}
        # `n_nonfinite` is there only if something went wrong.
        assert seen == {f"infonce/{name}" for name in names_explained - {"n_nonfinite"}}


def test_other_listeners_hear_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[int, dict[str, float]] = {}
    mlflow = SimpleNamespace(log_metrics=lambda numbers, step: heard.update({step: numbers}))
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32)
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("py")
    exec(block, {"stable_baselines3": stable_baselines3, "mlflow": mlflow, "model": model})
    model.learn(64)
    model.logger.close()
    assert list(heard) == [32, 64]
    assert {"train/loss", "time/iterations"} <= heard[64].keys()


@pytest.mark.parametrize(("loss", "trained"), [("info_nce", "now"), ("local_nce", "scores")])
def test_the_losses_printed_have_gradients(loss: str, trained: str) -> None:
    (block,) = (block for block in blocks("python") if f"import {loss}" in block)
    names: dict[str, Any] = {}
    exec(compile(block, "README python", "exec"), names)
    assert bool(names[trained].grad.any())


@pytest.mark.atari
def test_the_pretrained_encoder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks("python") if "use_encoder" in block)
    commands = next(line for line in blocks("sh") if line.startswith("rl-infonce pretrain"))
    pretrain, train = (shlex.split(line)[1:] for line in commands.splitlines())
    path = Path("pretrained", encoder_plan(make_parser().parse_args(pretrain)).name)
    used = path / "encoder.safetensors"
    assert make_parser().parse_args(train).pretrained == used
    path.mkdir(parents=True)
    encoder = PixelEncoder((4, 84, 84), generator=torch.Generator().manual_seed(0))
    save_encoder(encoder, used)
    names: dict[str, Any] = {}
    exec(compile(small(block, 256), "README python", "exec"), names)
    weight = names["model"].policy.features_extractor.cnn[0].weight
    assert torch.equal(weight, encoder.state_dict()["cnn.0.weight"])


def test_the_objectives_explained_are_those_there_are() -> None:
    explained = re.findall(
        r"`(\w+)`",
        "".join(
            row.split("|")[1]
            for row in section("Pretraining without reward").splitlines()
            if row.startswith("| `")
        ),
    )
    assert sorted(explained) == sorted(OBJECTIVES)


def test_the_losses_explained_are_those_there_are() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", section("The losses alone"), flags=re.MULTILINE)
    modules = ("rl_infonce.nce.losses", "rl_infonce.nce.noise_contrastive")
    losses = {
        name for name in nce.__all__ if getattr(getattr(nce, name), "__module__", "") in modules
    }
    assert set(explained) == losses - {"effective_sample_size"}


def test_presets_and_settings_are_those_of_the_code() -> None:
    options, of_no_preset = section("Options").split("Of no preset are:")
    assert set(re.findall(r'^\| `"(\w+)"`', options, flags=re.MULTILINE)) == set(PRESETS)
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)`.*? \| (.*)\|$", options, flags=re.MULTILINE)
    settings = [name for name, _, _ in rows]
    assert settings == [each.name for each in fields(InfoNCESettings)]
    for name, default, others in rows:
        printed = dict.fromkeys(PRESETS, ast.literal_eval(default))
        for presets, value in re.findall(r"([\w, ]+): `(.+?)`", others):
            printed |= dict.fromkeys(presets.strip().split(", "), ast.literal_eval(value))
        assert printed == {key: getattr(preset, name) for key, preset in PRESETS.items()}, name
    beside = dict(re.findall(r"^\| `(\w+)` \| `(.+?)`", of_no_preset, flags=re.MULTILINE))
    given_by_sb3_or_for_experts = {
        "observation_space",
        "preset",
        "action_space",
        "image_key",
        "normalized_image",
    }
    parameters = inspect.signature(InfoNCEExtractor).parameters
    assert {*settings, *beside} == parameters.keys() - given_by_sb3_or_for_experts
    for name, default in beside.items():
        assert ast.literal_eval(default) == parameters[name].default, name


def test_commands_are_ones_the_command_line_takes() -> None:
    command = shlex.split(blocks("bash")[0].splitlines()[-1])
    assert command[0] == "rl-infonce"
    assert make_parser().parse_args(command[1:]).game == "pong"


def test_the_first_command_installs_the_pinned_versions_here() -> None:
    (install,) = [line for line in blocks("bash")[0].splitlines() if line.startswith("pip ")]
    words = shlex.split(install)
    assert words[-1] == "."
    assert (ROOT / words[words.index("-c") + 1]).is_file()


def test_ci_runs_exactly_the_second_command() -> None:
    command = blocks("bash")[1].strip()
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == f"exec {command}"
    assert (ROOT / command.removeprefix("bash ")).is_file()


def test_the_second_command_runs_every_check() -> None:
    script = (ROOT / "tests" / "run.sh").read_text()
    for check in ("ruff format --check .", "ruff check .", "mypy", "lint-imports", "pytest"):
        assert re.search(rf"^(OMP_NUM_THREADS=1 )?{re.escape(check)}", script, flags=re.MULTILINE)
    assert "--group test" in script


def test_the_keys_of_a_grid_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `\[(.*?)\]`.*?\| (.*) \|$", GRID.read_text(), flags=re.MULTILINE)
    explained = {table: set(re.findall(r"`([a-z_]+)`", keys)) for table, keys in rows}
    assert explained["train"] == set(SETTINGS)
    assert explained["probe"] == set(PROBE_SETTINGS)
    assert explained["study"] | {"search"} == set(STUDY_SETTINGS)


def test_the_tests_of_faults_exist() -> None:
    named = re.findall(r"`(tests/.*?)`", FAULTS.read_text(encoding="utf-8"))
    assert len(set(named)) > 5
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("page", [ROOT / "README.md", FAULTS, GRID], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    shown = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", shown) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        text = target.read_text(encoding="utf-8") if anchor else ""
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
        assert not anchor or anchor in anchors, link
