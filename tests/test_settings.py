"""A setting is declared once: everything that takes, checks, notes or explains it reads there."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_infonce.cli.setting_flags import add_settings
from rl_infonce.kinds import PATH, Choice, Choices, Count, Counts, Flag, Kind, Number, is_legal
from rl_infonce.presets import check_fits_vectors, preset_settings
from rl_infonce.settings import InfoNCESettings, declared, defaults

PACKAGE = Path(__file__).parents[1] / "rl_infonce"
DECLARED = """\
    blurred: bool = setting(False, Flag(), "Whether the loss sees blurred images.")

    def __post_init__(self) -> None:
"""
FOUND = """
import contextlib, inspect, io, json, sys
from pathlib import Path
import numpy as np
from gymnasium import spaces
import rl_infonce
from rl_infonce import InfoNCEExtractor
from rl_infonce.cli import main, make_parser
from rl_infonce.presets import settings_table
from rl_infonce.settings import InfoNCESettings
from rl_infonce.sweeps.commands import train_command
from rl_infonce.sweeps.grid import GridError, make_grid

assert Path(rl_infonce.__file__).is_relative_to(Path.cwd()), rl_infonce.__file__
images = spaces.Box(0, 255, (4, 36, 36), np.uint8)
meaning = "Whether the loss sees blurred images."
assert inspect.signature(InfoNCEExtractor).parameters["blurred"].default is False
assert f"blurred: {meaning} (true or false; default False)" in InfoNCEExtractor.__doc__
assert InfoNCEExtractor(images, auto_bind=False, blurred=True).settings.blurred
try:
    InfoNCEExtractor(images, auto_bind=False, blurred="no")
    raise SystemExit("not checked")
except TypeError as error:
    assert "`blurred` to be True or False, got 'no'" in str(error), error
parse = make_parser().parse_args
assert parse(["train", "--game", "pong", "--no-blurred"]).blurred is False
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    parse(["train", "--help"])
assert "--blurred" in text.getvalue() and meaning in " ".join(text.getvalue().split())
grid = {"games": ["pong"], "n_timesteps": 64, "arms": ["infonce"], "seeds": [0]}
(cell,) = make_grid({**grid, "train": {"blurred": True}}).cells()
assert "--blurred" in train_command(cell, make_grid(grid), Path("run"))
try:
    make_grid({**grid, "train": {"blurred": 1}})
    raise SystemExit("not checked")
except GridError as error:
    assert "`train.blurred` to be true or false, got 1" in str(error), error
assert f"| `blurred` | `False` |  | {meaning} |" in settings_table(InfoNCESettings)
small = ["--n-envs", "1", "-params", "n_steps:16", "--device", "cpu"]
run = ["train", "--game", "pong", "-n", "16", "--blurred", "--run-dir", "run", *small]
assert main(run) == 0
record = json.loads(Path("run/run.json").read_text())
assert record["arguments"]["blurred"] is True
assert record["sessions"][0]["loss"]["blurred"] is True
"""


@pytest.mark.thorough
@pytest.mark.atari
def test_a_setting_is_declared_in_one_place(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "rl_infonce", ignore=shutil.ignore_patterns("__pycache__"))
    settings = tmp_path / "rl_infonce" / "settings.py"
    text, rest = settings.read_text().split("    def __post_init__(self) -> None:\n", 1)
    settings.write_text(text + DECLARED + rest)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr


def test_defaults_are_legal_and_have_a_meaning() -> None:
    for name, each in declared(InfoNCESettings).items():
        assert each.meaning.endswith("."), name
        default = defaults(InfoNCESettings)[name]
        assert default is None or is_legal(each.kind, default), name
        assert each.needs is None or each.needs[0] in declared(InfoNCESettings), name


@pytest.mark.parametrize("name", declared(InfoNCESettings))
def test_what_is_of_no_legal_kind_is_refused_by_name(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        preset_settings("cpc", {name: object()})


def test_what_others_leave_unused_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"`max_grad_ratio` .*isolated=True.*add isolated=False"):
        preset_settings("action_cpc", {"max_grad_ratio": 0.5})
    parser = argparse.ArgumentParser()
    add_settings(parser.add_argument, declared(InfoNCESettings))
    words = " ".join(parser.format_help().split())
    assert "norms of the RL gradient. Needs --no-isolated." in words
    assert "Needs --critic cosine." in words


@pytest.mark.parametrize("horizons", [3, True, "12", b"1"])
def test_horizons_that_are_no_list_are_refused(horizons: Any) -> None:
    with pytest.raises(TypeError, match="`horizons` to hold integers, got"):
        InfoNCESettings(horizons=horizons)


KINDS: list[tuple[Kind, list[Any], list[Any]]] = [
    (Number(above=0, at_most=1), [1, 0.5, np.float64(0.1)], [0, 2, True, "1", float("nan"), None]),
    (Number(), [-3, 0.0], [float("inf"), "x", False]),
    (Count(2), [2, np.int64(7)], [1, 2.0, True, "2"]),
    (Flag(), [True, False], [0, 1, "true", None]),
    (Choice(("a", "b")), ["a"], ["c", 1, None]),
    (Choices(("a", "b")), [["a"], ("a", "b")], [[], ["a", "a"], ["c"], "a", 1]),
    (Counts(), [[0, 3], (1,)], [[], [-1], [1.0], 1]),
    (PATH, ["x"], [1, None]),
]


@pytest.mark.parametrize(("kind", "legal", "illegal"), KINDS, ids=lambda kind: type(kind).__name__)
def test_kinds_take_what_their_words_say(kind: Kind, legal: list[Any], illegal: list[Any]) -> None:
    assert kind.words
    for value in legal:
        assert is_legal(kind, value), value
        kind.check("it", value)
    for value in illegal:
        assert not is_legal(kind, value), value


@pytest.mark.parametrize(
    ("name", "value"), [("activation", "elu"), ("feature_activation", "linear")]
)
def test_the_form_of_an_encoder_of_images_does_not_fit_vectors(name: str, value: str) -> None:
    check_fits_vectors(preset_settings("action_cpc", {}), "action_cpc", None)
    settings = preset_settings("action_cpc", {name: value})
    with pytest.raises(ValueError, match=f"`{name}` to fit vectors, got {value!r}"):
        check_fits_vectors(settings, "action_cpc", None)
