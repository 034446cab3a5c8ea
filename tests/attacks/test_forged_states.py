"""Checkpoints whose bytes agree with their digests, and whose state someone made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_infonce.resuming.resume_callback import ResumeCallback
from tests.attacks.forging import forge
from tests.attacks.formats import FORMATS, good_files, small_dqn

Copy = Callable[[str], Path]
Change = Callable[[dict[str, Any]], None]


def forged(copied: Copy, change: Change) -> Path:
    """Copy a run, change the state of its newest checkpoint, and return that one."""
    newest = max(copied("run").glob("step_*"))
    state = json.loads((newest / "state.json").read_text())
    change(state)
    forge(newest.parent, f"{newest.name}/state.json", json.dumps(state).encode())
    return newest


@pytest.mark.parametrize("name", ["../../secret.npy", "/secret.npy", "..", "shard_00000/../x"])
def test_arrays_outside_of_their_folder_are_not_read(name: str, copied: Copy) -> None:
    change: Change = lambda state: state["replay"]["shards"].update(actions=[name])  # noqa: E731
    newest = forged(copied, change)
    with pytest.raises(ValueError, match=rf"{newest}.* a file inside .*, got '{name}'"):
        FORMATS["run"].read(newest.parent)


@pytest.mark.parametrize("kind", ["path", "name", "list"])
def test_parameters_that_name_a_file_are_not_loaded(
    kind: str, copied: Copy, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SB3's `set_parameters` takes a file as well."""
    good_files("run", places["run"])
    model = max(places["run"].glob("step_*")) / "model.zip"
    monkeypatch.chdir(model.parent)
    given = {"path": str(model), "name": "model", "list": ["model.zip"]}[kind]
    newest = forged(copied, lambda state: state.update(parameters=given))
    with pytest.raises(ValueError, match=rf"a state of this model in {newest}"):
        FORMATS["run"].read(newest.parent)


def test_names_that_nobody_writes_become_no_attributes(copied: Copy) -> None:
    def change(state: dict[str, Any]) -> None:
        for group in ("counters", "statistics", "observed"):
            state[group] |= {"tensorboard_log": "/elsewhere", "train": 3, "_logger": "x"}

    model = small_dqn()
    assert ResumeCallback(forged(copied, change).parent).restore(model)
    assert model.tensorboard_log is None
    assert callable(model.train)
    assert not hasattr(model, "_logger")


def went_on(folder: Path) -> str | None:
    """Go on for a few steps; return why it cannot be, None if it can."""
    model, run = small_dqn(), ResumeCallback(folder)
    try:
        assert run.restore(model)
        model.learn(6, callback=run, reset_num_timesteps=False)
    except ValueError as error:
        return str(error)
    return None


KEYS = [
    *("settings", "parameters", "variables", "counters", "observed", "statistics", "lstm"),
    *("exploration", "env", "inexact", "streams", "action_space", "extractors", "callbacks"),
    *("logger", "replay", "normalization", "action_noise", "put_off"),
]


def test_a_state_has_these_keys(copied: Copy) -> None:
    state = json.loads((max(copied("run").glob("step_*")) / "state.json").read_text())
    assert sorted(state) == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["gone", [{"class": "x"}]], ids=str)
def test_a_state_of_something_else_is_named_before_or_in_learn(
    key: str, value: Any, copied: Copy
) -> None:
    def change(state: dict[str, Any]) -> None:
        state[key] = value
        if value == "gone":
            del state[key]

    newest = forged(copied, change)
    message = went_on(newest.parent)
    assert message is None or str(newest) in message
    if key in ("parameters", "env", "streams", "replay", "settings"):
        assert message is not None


@pytest.mark.parametrize(
    "change",
    [
        {"pos": -1},
        {"pos": 16},
        {"pos": 10**12},
        {"pos": 1.5},
        {"pos": None},
        {"shards": {}},
        {"shards": 3},
        {"n_added": "x"},
        {"sha256": [1]},
    ],
    ids=str,
)
def test_rows_of_another_buffer_are_refused(change: dict[str, Any], copied: Copy) -> None:
    newest = forged(copied, lambda state: state["replay"].update(change))
    message = went_on(newest.parent)
    assert message is not None
    assert str(newest) in message


def test_the_good_one_goes_on(copied: Copy) -> None:
    newest = forged(copied, lambda state: None)
    assert went_on(newest.parent) is None
    assert FORMATS["run"].read(newest.parent)
