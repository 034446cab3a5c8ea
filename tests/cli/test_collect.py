import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_infonce.atari import load_frames, random_play
from rl_infonce.cli import main, make_parser
from tests.agents.models import OwnCNN, save_model
from tests.cli.running import ctrl_c, errors_of, refusal

pytestmark = pytest.mark.atari


def command(folder: Path, *flags: str) -> list[str]:
    sizes = ("-n", "24", "--n-shards", "2", "--no-progress")
    return ["collect", "--game", "Breakout", "-o", str(folder), *sizes, *flags]


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "manifest.json").read_text())["settings"]
    return settings


def test_defaults_are_the_papers() -> None:
    flags = make_parser().parse_args(["collect", "--env", "ALE/MsPacman-v5", "-o", "frames"])
    assert (flags.game, flags.n_steps, flags.n_shards) == ("ms_pacman", 50_000, 8)
    assert (flags.policy, flags.seed, flags.output) == ("random", 0, Path("frames"))
    assert (flags.views, flags.epsilon, flags.n_workers) == (["screen", "agent"], None, None)


def test_help_says_what_trust_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["collect", "--help"])
    assert leaving.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Let a model file that cannot be read safely execute the code it contains" in words
    assert "Agent steps to play (50000)" in words


def test_frames_are_collected_and_a_second_call_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = command(tmp_path / "new", "--policy", "random-without-noop", "--views", "agent")
    assert main(flags) == 0
    printed = capsys.readouterr()
    assert f"24 states of breakout in {tmp_path / 'new'}" in printed.out
    assert printed.err == ""
    frames = load_frames(tmp_path / "new")
    assert settings_of(tmp_path / "new")["policy"] == "random_without_noop"
    assert frames.column("actions").min() > 0
    assert errors_of(*flags, code=0) == ""
    (line,) = errors_of(*flags, "--seed", "1").splitlines()
    assert "seed=0 (not 1)" in line


def test_who_asks_for_quiet_is_told_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(tmp_path / "new"), "--quiet"]) == 0
    assert main([*command(tmp_path / "new")[:-1], "--progress", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert len(load_frames(tmp_path / "new")) == 24
    assert "seed=0 (not 1)" in errors_of(*command(tmp_path / "new"), "-q", "--seed", "1")


def test_a_bar_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    assert "breakout: 100%" in errors_of(*command(tmp_path / "new"), "--progress", code=0)


def test_a_model_acts_without_its_pickles_and_is_named_by_its_hash(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.zip", n_actions=4)
    half = ("--policy", str(model), "--epsilon", "0.5")
    assert main(command(tmp_path / "a", *half)) == 0
    assert main(command(tmp_path / "b", *half, "--trust-pickle")) == 0
    for column in ("actions", "ram"):
        np.testing.assert_array_equal(
            load_frames(tmp_path / "a").column(column), load_frames(tmp_path / "b").column(column)
        )
    (tmp_path / "run").mkdir()
    model.rename(tmp_path / "run" / "model.zip")
    model = tmp_path / "run"  # is known by the file in it, and goes on with "a"
    assert main(command(tmp_path / "a", "--policy", str(model), "--epsilon", "0.5")) == 0
    name = settings_of(tmp_path / "a")["policy"]
    assert name.startswith("model sha256=")
    assert name.endswith(" sampled epsilon=0.5")
    assert main(command(tmp_path / "c", "--policy", str(model), "--deterministic")) == 0
    assert settings_of(tmp_path / "c")["policy"].endswith(" deterministic epsilon=0.2")


def test_a_class_of_the_users_needs_trust(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model.zip", n_actions=4, extractor=OwnCNN)
    flags = command(tmp_path / "new", "--policy", str(model))
    (line,) = errors_of(*flags).splitlines()
    assert "OwnCNN" in line
    assert "--trust-pickle" in line
    with pytest.warns(UserWarning, match="The code in .*model.zip is being executed"):
        assert main([*flags, "--trust-pickle"]) == 0


def test_what_fails_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder, and no model")
    of_pong = str(save_model(tmp_path / "model.zip"))
    small = str(save_model(tmp_path / "small.zip", n_actions=4, size=40))
    for flags, message in (
        (
            command(tmp_path / "file"),
            f"Expected `--output` to be a folder that can be made, got {tmp_path}/file",
        ),
        (command(tmp_path / "new", "--policy", str(tmp_path / "file")), "zip"),
        (command(tmp_path / "new", "--policy", of_pong), "4 actions of"),
        (command(tmp_path / "new", "--policy", small), "(4, 84, 84), as make_atari_vec_env gives"),
    ):
        (line,) = errors_of(*flags).splitlines()
        assert line.startswith("rl-infonce collect: ")
        assert message in line
    assert not list((tmp_path / "new").iterdir()), "no manifest of what cannot be collected"


def test_ctrl_c_leaves_with_130_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_play, "play_shard", ctrl_c)
    assert "the same command goes on" in errors_of(*command(tmp_path / "new"), code=130)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--n-steps", "1"], "--n-steps"),
        (["--n-shards", "0"], "--n-shards"),
        (["--seed", "-1"], "--seed"),
        (["--n-workers", "0"], "--n-workers"),
        (["--views", "rgb"], "--views"),
        (["--views", "agent", "agent"], "distinct `--views`"),
        (["--policy", "greedy"], "or the directory of its run, got 'greedy'"),
        (["--epsilon", "0.1"], "`--policy` to be a model beside --epsilon"),
        (["--trust-pickle"], "got random"),
        (["--policy", __file__, "--epsilon", "2"], "--epsilon"),
    ],
)
def test_wrong_usage_exits_2_before_a_folder_exists(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    said = refusal(*command(tmp_path / "new", *flags))
    assert message in said.splitlines()[-1]
    assert not (tmp_path / "new").exists()
