"""Pushed to a stand-in of the hub and pulled from it, and everything that can go wrong there."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.envs import FakeImageEnv

from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import read_policy
from rl_infonce.cli import main
from rl_infonce.files import durable
from rl_infonce.files.digests import sha256_of
from rl_infonce.files.durable import replace_json
from rl_infonce.hub import Bundle, HubError, bundle, client, make_bundle, pull, push
from rl_infonce.hub.card import game_id, model_card, probe_rows
from rl_infonce.hub.files import AGENT, MOST_BYTES
from rl_infonce.networks.encoder_file import load_encoder, save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.runs.checkpoints import write_checkpoint
from rl_infonce.runs.evaluation_file import evaluation_record
from rl_infonce.runs.run_directory import new_record, write_record
from tests.agents.models import OwnCNN, save_model
from tests.attacks.forging import payloads
from tests.attacks.formats import SCORES_SETTINGS
from tests.hub.stand_in import COMMIT, StandIn, running
from tests.scoring.test_scores_page import entry

utils = pytest.importorskip("huggingface_hub.utils")

REPO = "me/pong"
BUSY: list[tuple[int, dict[str, str]]] = [(429, {}), (503, {})]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    """Yield a stand-in that huggingface_hub takes for the hub; waiting takes no time."""
    with running() as server:
        monkeypatch.setenv("HF_TOKEN", "right")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        # Read from HF_ENDPOINT once in a process.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr(client, "_sleep", lambda _seconds: None)
        monkeypatch.chdir(tmp_path)
        utils.close_session()
        yield server
        utils.close_session()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an encoder, a run, pong_1, its evaluation and probe scores of both."""
    folder = tmp_path_factory.mktemp("made")
    saved_encoder(folder, objective="stdim")
    run_dir = folder / "pong_1"
    run_dir.mkdir()
    folders = {"log_folder": "/home/me/secret", "tensorboard_log": "/home/me/secret/tb"}
    arguments = {"game": "pong", "algo": "ppo", "n_pairs": 8, **folders}
    sessions = [{"loss": {"n_pairs": 8, "temperature": 0.125}}]
    record = new_record(arguments, seed=42) | {"n_timesteps_done": 2048, "sessions": sessions}
    write_record(run_dir, record)
    save_model(run_dir / "model.zip", n_timesteps=2048)
    episodes = [{"return": r, "length": 9, "is_cut": False} for r in (-21.0, -19.0)]
    sha256 = sha256_of((run_dir / "model.zip").read_bytes())
    model = {"path": "/home/me/secret/model.zip", "sha256": sha256}
    settings = {"seed": 7, "deterministic": False, "epsilon": 0.0}
    about: dict[str, Any] = {"settings": settings, "versions": {}, "model": model}
    about["command"] = "rl-infonce evaluate --model /home/me/secret"
    replace_json(folder / "evaluation.json", evaluation_record("pong", episodes, **about))
    key = sha256_of((folder / "encoder.safetensors").read_bytes())[:16]
    replace_json(folder / "scores.json", scores(key))
    return folder


def saved_encoder(folder: Path, **provenance: Any) -> Path:
    path = folder / "encoder.safetensors"
    encoder = PixelEncoder((4, 84, 84), 8, generator=torch.Generator().manual_seed(0))
    save_encoder(encoder, path, provenance=provenance)
    return path


def scores(key: str) -> dict[str, Any]:
    """Return what `rl-infonce probe` writes for a file of this key, with two seeds."""
    f1 = {key: (0.6, 0.8), "random-1": (0.4, 0.5), "random-2": (0.1, 0.1), "majority": (0.2, 0.3)}
    cells = [
        entry("pong", encoder, seed, each, run=0)
        for encoder, by_seed in f1.items()
        for seed, each in enumerate(by_seed)
    ]
    told = {"status": "failed", "error": "/home/me/secret is damaged"}
    cells.append({"game": "pong", "encoder": key, "seed": 9, "protocol": "knn", "run": 0, **told})
    same = "nature 8 on 4x84x84, fp32"
    return {
        "format_version": 1,
        "settings": {**SCORES_SETTINGS, "n_frames": 50000, "data_seed": 0},
        "encoders": {
            key: {"name": "/home/me/encoder.safetensors", "kind": "file", "description": same},
            "random-1": {"name": "random", "kind": "random", "description": same},
            "random-2": {"name": "random", "kind": "random", "description": "another"},
            "majority": {"name": "majority", "kind": "majority", "description": "label"},
        },
        "runs": [{"command": "rl-infonce probe --encoder /home/me/secret"}],
        "cells": cells,
    }


def everything(made: Path) -> dict[str, Any]:
    return {
        "encoder": made / "encoder.safetensors",
        "model": made / "pong_1",
        "evaluation": made / "evaluation.json",
        "scores": made / "scores.json",
    }


@pytest.fixture
def pushed(hub: StandIn, made: Path) -> StandIn:
    push(REPO, make_bundle(**everything(made)))
    hub.asked.clear()
    return hub


# -- there and back ---------------------------------------------------------------------------


def test_what_is_pushed_comes_back(pushed: StandIn, made: Path, tmp_path: Path) -> None:
    pulled = pull(REPO, tmp_path / "back")
    assert pulled.commit == COMMIT
    assert set(pulled.files) == set(MOST_BYTES)
    assert pulled.left_out == []
    for name, source in (("encoder.safetensors", made), ("model.zip", made / "pong_1")):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    images = torch.zeros(1, 4, 84, 84, dtype=torch.uint8)
    assert load_encoder(tmp_path / "back" / "encoder.safetensors")(images).shape == (1, 8)
    assert read_policy(tmp_path / "back" / "model.zip")(images).shape == (1, 6)
    record = json.loads((tmp_path / "back" / "pull.json").read_text())
    assert (record["repo"], record["commit"], record["endpoint"]) == (REPO, COMMIT, pushed.url)
    sha256 = sha256_of((made / "encoder.safetensors").read_bytes())
    assert record["files"]["encoder.safetensors"]["sha256"] == sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back"]


def test_numbers_of_a_training_that_went_bad_come_back(hub: StandIn, tmp_path: Path) -> None:
    path = saved_encoder(tmp_path, validation_loss=float("nan"))
    push(REPO, make_bundle(encoder=path))
    assert "encoder.safetensors" in pull(REPO, tmp_path / "back").files


def test_every_file_is_of_the_commit_and_not_of_the_branch(pushed: StandIn, tmp_path: Path) -> None:
    pull(REPO, tmp_path / "back", revision="main")
    paths = [path for _, path in pushed.asked]
    assert [path for path in paths if "/revision/main" in path] == paths[:1]
    assert all(f"/resolve/{COMMIT}/" in path for path in paths[1:])
    pull(REPO, tmp_path / "again", revision=COMMIT)
    with pytest.raises(HubError, match=r"404 to http://.*/revision/2{40}"):
        pull(REPO, tmp_path / "other", revision="2" * 40)


def test_the_card_says_what_is_known(pushed: StandIn, made: Path) -> None:
    yaml = pytest.importorskip("yaml")
    card = pushed.repos[REPO]["README.md"].decode()
    _, metadata, text = card.split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["library_name"] == "stable-baselines3"
    assert {"PongNoFrameskip-v4", "reinforcement-learning", "rl-infonce"} <= set(found["tags"])
    (index,) = found["model-index"]
    assert index["name"] == "PPO"
    (result,) = index["results"]
    assert result["dataset"]["type"] == "PongNoFrameskip-v4"
    assert result["metrics"] == [
        {"type": "mean_reward", "name": "mean_reward", "value": "-20.00 +/- 1.00"},
        {"type": "f1", "name": "probe F1 (converged, encoder.safetensors)", "value": 0.7},
    ]
    assert "Mean return **-20.00** ± 1.00 (standard error) over 2 games" in text
    assert "| pong | converged | `encoder.safetensors` | 0 1 | 0.700 | 0.450 | 0.250 |" in text
    assert "| seed | `42` |" in text
    assert "| torch | `" in text
    sha256 = sha256_of((made / "pong_1" / "model.zip").read_bytes())
    assert f"`{sha256}`" in text
    assert f'read_policy(hf_hub_download("{REPO}", "model.zip"))' in text
    assert f'load_encoder(hf_hub_download("{REPO}", "encoder.safetensors"))' in text


def test_the_cards_example_runs(pushed: StandIn, made: Path, monkeypatch: Any) -> None:
    import huggingface_hub

    local = {"encoder.safetensors": made, "model.zip": made / "pong_1"}
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda _repo, name: local[name] / name)
    code = pushed.repos[REPO]["README.md"].decode().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "card", "exec"), names)
    images = torch.zeros(1, 4, 84, 84, dtype=torch.uint8)
    assert names["encoder"](images).shape == (1, 8)
    assert names["policy"](images).shape == (1, 6)


def test_no_folder_of_this_machine_is_told(pushed: StandIn) -> None:
    for name in ("README.md", "config.json", "evaluation.json", "scores.json"):
        assert b"/home/me" not in pushed.repos[REPO][name], name


def test_what_is_about_the_former_model_goes_or_is_replaced_and_others_files_stay(
    pushed: StandIn, made: Path
) -> None:
    pushed.repos[REPO]["notes.txt"] = b"my own"
    push(REPO, make_bundle(encoder=made / "encoder.safetensors"))
    assert pushed.repos[REPO]["README.md"].startswith(b"---\nlibrary_name")
    assert b"# Encoder: nature 8 on 4x84x84, fp32" in pushed.repos[REPO]["README.md"]
    kept = {"README.md", "config.json", "encoder.safetensors", "notes.txt"}
    assert set(pushed.repos[REPO]) == kept


def test_the_card_of_an_encoder_says_how_it_was_trained(hub: StandIn, tmp_path: Path) -> None:
    about: dict[str, Any] = {"game": "pong", "objective": "stdim", "seed": 3}
    about["versions"] = {"torch": "2.9"}
    path = saved_encoder(tmp_path, **about, git_commit="abc")
    push(REPO, make_bundle(encoder=path))
    card = hub.repos[REPO]["README.md"].decode()
    assert "# Encoder on pong: nature 8" in card
    assert "PongNoFrameskip-v4" in card
    for row in ('objective | `"stdim"`', "seed | `3`", 'commit of rl_infonce | `"abc"`'):
        assert f"| {row} |" in card, row
    assert '| torch | `"2.9"` |' in card
    told = make_bundle(encoder=saved_encoder(tmp_path, versions="2.9", game=["pong"]))
    assert '| versions | `"2.9"` |' in model_card(REPO, told)


def test_small_returns_are_not_rounded_to_zero(made: Path, tmp_path: Path) -> None:
    given = everything(made)
    record = json.loads(Path(given["evaluation"]).read_text())
    for episode in record["episodes"]:
        episode["return"] /= 10_000
    small = tmp_path / "small.json"
    small.write_text(json.dumps(record))
    card = model_card(REPO, make_bundle(model=given["model"], evaluation=small))
    assert "Mean return **-0.002** ± 0.0001 (standard error)" in card
    assert "-0.002 +/- 0.0001" in card


# -- what is pushed belongs together ----------------------------------------------------------


def test_nothing_or_files_about_others_are_not_pushed(made: Path, tmp_path: Path) -> None:
    given = everything(made)
    with pytest.raises(ValueError, match="got neither"):
        make_bundle()
    with pytest.raises(
        ValueError, match="about the model that is pushed, got the evaluation of another"
    ):
        make_bundle(encoder=given["encoder"], evaluation=given["evaluation"])
    other = save_model(tmp_path / "other.zip", seed=1)
    with pytest.raises(
        ValueError, match="about the model that is pushed, got the evaluation of another"
    ):
        make_bundle(model=other, evaluation=given["evaluation"])
    with pytest.raises(ValueError, match="scores of other files"):
        make_bundle(model=other, scores=given["scores"])


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_what_pull_would_refuse_is_not_pushed(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    path = saved_encoder(tmp_path, losses=[0.123456789] * 100_000)
    assert main(["push", REPO, "--encoder", str(path), *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"config\.json .* at most 1,048,576 bytes, .* got [\d,]+", line)
    assert hub.asked == []


def test_models_that_only_code_can_read_are_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(NotRebuildableError, match="OwnCNN"):
        make_bundle(model=save_model(tmp_path / "own.zip", extractor=OwnCNN))


def test_a_model_that_tells_a_folder_is_warned_of(tmp_path: Path) -> None:
    env = FakeImageEnv(screen_height=84, screen_width=84, n_channels=4, channel_first=True)
    logs = str(tmp_path / "mine")
    PPO("CnnPolicy", env, tensorboard_log=logs).save(tmp_path / "ppo.zip")
    with pytest.warns(UserWarning, match=f"tells the folder .*, {re.escape(logs)}. To keep"):
        make_bundle(model=tmp_path / "ppo.zip", game="pong")


def test_of_a_model_without_a_policy_for_games_the_encoder_is_shown(tmp_path: Path) -> None:
    env = FakeImageEnv(
        screen_height=84, screen_width=84, n_channels=4, channel_first=True, discrete=False
    )
    SAC("CnnPolicy", env, buffer_size=10).save(tmp_path / "sac.zip")
    bundle = make_bundle(model=tmp_path / "sac.zip", game="pong")
    assert (bundle.has_policy, bundle.game) == (False, "pong")


def test_encoders_have_rows_of_their_own_beside_their_own_seeds_and_architecture() -> None:
    content = scores("key")
    content["encoders"]["more"] = {"name": "b", "kind": "file", "description": "another"}
    (cell,) = [c for c in content["cells"] if (c["encoder"], c["seed"]) == ("key", 1)]
    mean = {**cell["scores"], "mean": {"f1_weighted": 0.1}}
    content["cells"].append({**cell, "encoder": "more", "scores": mean})
    rows = probe_rows(content, {"key": "encoder.safetensors", "more": "model.zip"})
    assert [(row["encoder"], row["seeds"]) for row in rows] == [
        ("encoder.safetensors", [0, 1]),
        ("model.zip", [1]),
    ]
    assert [row["f1"] for row in rows] == [pytest.approx(0.7), pytest.approx(0.1)]
    assert [row["untrained"] for row in rows] == [pytest.approx(0.45), pytest.approx(0.1)]
    assert [row["majority"] for row in rows] == [pytest.approx(0.25), pytest.approx(0.3)]
    assert probe_rows(content, {"other": "model.zip"}) == []


# -- faults -----------------------------------------------------------------------------------


def assert_refused(folder: Path, kind: type[Exception], match: str, **settings: Any) -> Exception:
    """Pull, expect an error, and that nothing at all was left behind."""
    before = sorted(folder.iterdir())
    with pytest.raises(kind, match=match) as raised:
        pull(REPO, folder / "back", **settings)
    assert sorted(folder.iterdir()) == before
    return raised.value


def test_401_says_how_to_log_in(
    pushed: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed.private = True
    assert pull(REPO, tmp_path / "ours").commit == COMMIT
    monkeypatch.setenv("HF_TOKEN", "wrong")
    error = assert_refused(
        tmp_path, HubError, r"401 to http://127.*/api/models/me/pong.*hf auth login"
    )
    assert isinstance(error, HubError)
    assert error.status == 401
    assert "wrong" not in str(error)


def test_404_names_the_url(hub: StandIn, made: Path, tmp_path: Path) -> None:
    assert_refused(
        tmp_path, HubError, rf"404 to {hub.url}/api/models/me/pong/revision/main.*no such"
    )
    push(REPO, make_bundle(**everything(made)))
    hub.refusals["resolve.*scores.json"] = [(404, {"X-Error-Code": "EntryNotFound"})]
    assert_refused(tmp_path, HubError, rf"404 to {hub.url}/{REPO}/resolve/{COMMIT}/scores.json")


@pytest.mark.parametrize("path", ["/api/models", "/resolve/.*model.zip"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again(
    pushed: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(client, "_sleep", waits.append)
    answers: list[tuple[int, dict[str, str]]] = [(status, {}), (status, {"Retry-After": "17"})]
    pushed.refusals[path] = [*answers, (status, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"})]
    assert pull(REPO, tmp_path / "back").commit == COMMIT
    assert waits == [1.0, 17.0, 4.0]


def test_429_for_ever_ends_with_the_status(pushed: StandIn, tmp_path: Path) -> None:
    pushed.refusals["/api/models"] = 9 * BUSY[:1]
    assert_refused(tmp_path, HubError, "429 to .*Too many requests")
    assert len(pushed.asked) == 5


def test_no_hub_is_an_error_with_its_url(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        error = assert_refused(
            tmp_path, HubError, f"no complete answer from {url}/api/models/me/pong.*refused"
        )
    assert isinstance(error, HubError)
    assert error.status is None


@pytest.mark.parametrize("name", ["model.zip", "encoder.safetensors", "README.md"])
def test_a_partial_download_leaves_nothing(pushed: StandIn, tmp_path: Path, name: str) -> None:
    pushed.cut.add(name)
    assert_refused(
        tmp_path, HubError, rf"no complete answer from {pushed.url}/{REPO}/resolve/{COMMIT}/{name}"
    )


def test_a_shorter_file_is_noticed_and_a_longer_one_stopped(
    pushed: StandIn, tmp_path: Path
) -> None:
    pushed.sent["README.md"] = b"short"
    assert_refused(tmp_path, HubError, r"bytes from .*README.md, got 5")
    pushed.sent["README.md"] = bytes(2**22)
    assert_refused(tmp_path, ValueError, "README.md, got more")


@pytest.mark.parametrize("is_listed_as_lfs", [True, False])
def test_a_pointer_is_not_taken_for_the_file(
    pushed: StandIn, tmp_path: Path, is_listed_as_lfs: bool
) -> None:
    if is_listed_as_lfs:
        pushed.is_lfs.add("model.zip")
        pushed.sent["model.zip"] = POINTER
    else:
        pushed.repos[REPO]["model.zip"] = POINTER
    assert_refused(tmp_path, ValueError, "model.zip, got a pointer of Git LFS")


@pytest.mark.parametrize(("is_lfs", "words"), [(True, "file of SHA-256"), (False, "git's blob")])
def test_a_changed_file_is_noticed(
    pushed: StandIn, tmp_path: Path, is_lfs: bool, words: str
) -> None:
    pushed.is_lfs |= {"encoder.safetensors"} if is_lfs else set()
    changed = bytearray(pushed.repos[REPO]["encoder.safetensors"])
    changed[-1] ^= 1
    pushed.sent["encoder.safetensors"] = bytes(changed)
    assert_refused(tmp_path, HubError, rf"{words} \w+ from .*encoder.safetensors, got ")


def test_large_files_are_refused_before_a_byte_is_asked(pushed: StandIn, tmp_path: Path) -> None:
    assert_refused(tmp_path, ValueError, r"at most 1,000 bytes, got .*--max-bytes", most_bytes=1000)
    pushed.sizes["README.md"] = 2**21
    assert_refused(
        tmp_path, ValueError, "README.md of me/pong to have at most 1,048,576 bytes, got 2,097"
    )
    assert not [path for _, path in pushed.asked if "resolve" in path]


def test_other_names_are_left_out(pushed: StandIn, tmp_path: Path) -> None:
    bad = ["../../escape.zip", "/etc/passwd", "..\\model.zip", "sub/model.zip", "a.pkl", ".."]
    pushed.repos[REPO] |= dict.fromkeys(bad, b"")
    pulled = pull(REPO, tmp_path / "inner" / "back")
    assert pulled.left_out == sorted(bad)
    assert set(pulled.files) == set(MOST_BYTES)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    written = {f"inner/back/{name}" for name in (*MOST_BYTES, "pull.json")}
    assert found == written | {"inner", "inner/back"}


def test_a_repository_of_others_names_is_none_of_ours(hub: StandIn, tmp_path: Path) -> None:
    hub.repos[REPO] = {"../model.zip": b"", "pytorch_model.bin": b""}
    assert_refused(tmp_path, ValueError, r"hold encoder.safetensors or model.zip.*'\.\./model.zip'")


@pytest.mark.parametrize("name", [*MOST_BYTES])
def test_no_payload_is_executed_whatever_name_it_has(
    pushed: StandIn, tmp_path: Path, name: str
) -> None:
    mark = tmp_path / "executed"
    for payload in payloads(mark).values():
        pushed.repos[REPO][name] = payload
        if name == "README.md" and payload.isascii():
            continue  # text, which nothing reads
        assert_refused(tmp_path, ValueError, f"{name} of {REPO} cannot be used")
    assert not mark.exists()


def test_what_is_there_is_not_touched(pushed: StandIn, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "mine").touch()
    assert_refused(tmp_path, FileExistsError, "new folder")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["mine"]
    assert pushed.asked == []


@pytest.mark.parametrize("path", ["repos/create", "preupload", "/commit/"])
def test_pushing_is_patient_and_says_what_failed(hub: StandIn, made: Path, path: str) -> None:
    bundle = make_bundle(encoder=made / "encoder.safetensors")
    hub.refusals[path] = list(BUSY)
    assert push(REPO, bundle) == f"{hub.url}/{REPO}/commit/{COMMIT}"
    assert set(hub.repos[REPO]) == {"README.md", "encoder.safetensors", "config.json"}
    hub.refusals[path] = [(403, {})]
    hub.repos.clear()  # who may not make a repository may still write to one that is there
    with pytest.raises(HubError, match=rf"403 to {hub.url}/.*{path}.*write access") as raised:
        push(REPO, bundle)
    assert raised.value.status == 403


LARGE = {"model.zip", "encoder.safetensors"}


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's
def test_large_files_are_pushed_as_objects_of_their_own(
    hub: StandIn, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: False)
    hub.large, hub.private = LARGE, False
    bundle = make_bundle(**everything(made))
    push(REPO, bundle)
    assert {hub.repos[REPO][name] for name in LARGE} == {*hub.objects.values()}
    assert hub.repos[REPO].items() >= bundle.files.items()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
@pytest.mark.parametrize("by_xet", [False, True])
def test_large_files_that_find_no_place_are_an_error_of_the_hubs(
    hub: StandIn, made: Path, monkeypatch: pytest.MonkeyPatch, by_xet: bool
) -> None:
    if by_xet:
        pytest.importorskip("hf_xet")
    monkeypatch.setattr("huggingface_hub._commit_api.is_xet_available", lambda: by_xet)
    hub.large = LARGE
    hub.refusals = {r"xet-write-token|lfs/objects": [(403, {})] * 50}
    with pytest.raises(HubError, match=r"http://127\.0\.0\.1:\d+/"):
        push(REPO, make_bundle(**everything(made)))
    assert "model.zip" not in hub.repos[REPO]


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "rl-infonce\[hub\]"'):
        pull(REPO, tmp_path / "back")


def test_a_card_without_the_package_says_so_too(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["push", REPO, "--encoder", str(made / "encoder.safetensors"), "--dry-run"]) == 1
    assert 'huggingface_hub, which is not installed. Install it with `pip install "rl-inf' in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("endpoint", ["http://a b", "localhost:80", "http://a:b"])
def test_an_endpoint_that_is_no_address_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    endpoint: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    assert main(["pull", REPO, "-o", str(tmp_path / "back")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rl-infonce pull: Expected `HF_ENDPOINT` to be an address such as")


@pytest.mark.thorough
def test_an_endpoint_that_the_library_itself_cannot_read_is_one_line(tmp_path: Path) -> None:
    """In a process of its own, as the library reads the address when it is imported."""
    pulling = subprocess.run(
        [sys.executable, "-m", "rl_infonce", "pull", REPO, "-o", str(tmp_path / "back")],
        env=os.environ | {"HF_ENDPOINT": "http://[bad"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert pulling.returncode == 1
    (line,) = pulling.stderr.splitlines()
    assert line.startswith("rl-infonce pull: Expected `HF_ENDPOINT` to be an address such as")


def test_another_error_of_the_library_is_not_blamed_on_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreadable:
        def HfApi(self, **_: str) -> None:
            raise ValueError("a timeout that is no number")

    monkeypatch.setattr(client, "library", Unreadable)
    for endpoint in ("", "https://huggingface.co"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ValueError, match="a timeout that is no number"):
            client.api()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_every_file_is_on_the_disk_before_the_folder_has_its_name(
    pushed: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = durable._fsync

    def note(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(durable, "_fsync", note)
    pulled = pull(REPO, tmp_path / "back")
    assert pulled.files.keys() <= synced


def test_games_have_the_name_under_which_the_hub_finds_them() -> None:
    assert game_id("tic_tac_toe_3d") == "TicTacToe3DNoFrameskip-v4"


def test_the_card_of_an_agent_of_no_game_names_its_environment(tmp_path: Path) -> None:
    env = "MiniGrid-Empty-5x5-v0"
    write_record(tmp_path, new_record({"env": env, "algo": "ppo"}, seed=1))
    run = bundle._of_run(tmp_path, {"num_timesteps": 8})
    assert (run["game"], run["settings"]) == (env, {})
    episodes = [{"return": 0.5, "length": 9, "is_cut": False}] * 2
    settings = {"seed": 7, "deterministic": True}
    record = evaluation_record(env, episodes, settings=settings, model={}, versions={})
    made = Bundle({AGENT: b""}, "nature 8", run["game"], True, run=run, evaluation=record)
    card = model_card(REPO, made)
    assert f"# PPO on {env}\n" in card
    assert f"over 2 episodes of {env}: best action, seed 7. `evaluation.json`" in card
    assert f"- {env}\n" in card
    for word in ("NoFrameskip", "atari", "evaluate --model", "epsilon"):
        assert word not in card, word


# -- the commands -----------------------------------------------------------------------------


def test_the_commands_push_and_pull(
    hub: StandIn, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--{name}={path}" for name, path in everything(made).items()]
    assert main(["push", REPO, *flags]) == 0
    assert f"Pushed: {hub.url}/{REPO}/commit/{COMMIT}" in capsys.readouterr().out
    hub.repos[REPO]["notes.txt"] = b""
    assert main(["pull", REPO]) == 0
    printed = capsys.readouterr().out
    assert f"{Path('pong') / 'model.zip'} (" in printed
    assert "Left out: 1 files" in printed
    again = printed.partition("To get the same again: rl-infonce ")[2]
    assert again.startswith(f"pull {REPO} --revision {COMMIT} -o ")
    assert (tmp_path / "pong" / "pull.json").is_file()
    assert main(shlex.split(again)) == 0  # beside the first one
    assert {each.name for each in tmp_path.iterdir()} >= {"pong", f"pong-{COMMIT[:8]}"}


@pytest.mark.thorough
@pytest.mark.slow
def test_a_process_of_its_own_asks_the_endpoint_it_is_given(pushed: StandIn) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "rl_infonce", "pull", REPO],
        env={**os.environ, "HF_ENDPOINT": pushed.url},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"--revision {COMMIT}" in answer.stdout


def test_the_dry_run_asks_nobody(
    hub: StandIn, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", REPO, "--encoder", str(made / "encoder.safetensors"), "--dry-run"]) == 0
    assert "library_name: stable-baselines3" in capsys.readouterr().out
    assert hub.asked == []


def test_another_game_than_that_of_the_run_is_warned_of(hub: StandIn, made: Path) -> None:
    with pytest.warns(UserWarning, match="pong_1 was trained on pong, and plays breakout"):
        main(["push", REPO, "--model", str(made / "pong_1"), "--game", "breakout", "--dry-run"])


def test_failures_are_one_line_and_code_1(
    hub: StandIn, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", REPO]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rl-infonce pull: The hub answered 404 to {hub.url}/api/models/")
    hub.private = True
    hub.refusals["create"] = [(401, {})]
    assert main(["push", REPO, "--encoder", str(made / "encoder.safetensors")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rl-infonce push: The hub answered 401 to {hub.url}/api/repos/create")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_nothing(
    pushed: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    pushed.refusals["resolve.*scores.json"] = [(429, {})]
    monkeypatch.setattr(client, "_sleep", stop)
    assert main(["pull", REPO]) == 130
    assert "nothing was kept" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["push", REPO], "got neither"),
        (["push", REPO, "--model", "none"], "no such file"),
        (["push", REPO, "--encoder", "none.safetensors"], "no such file"),
        (["push", REPO, "--game", "pomg"], "Did you mean 'pong'"),
        *(
            ([command, repo, *flags], f"`repo` as owner/name, of letters, digits, . _ -, {got}")
            for repo in ("name", "a/b/c", "../x", "a/", "a b/c", "a/b\n")
            for got in [f"got {repo!r}"]
            for command, *flags in (("push", "--encoder", "e"), ("pull",))
        ),
    ],
)
def test_wrong_usage_exits_2(
    hub: StandIn, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert hub.asked == []


def test_an_answer_that_is_not_the_hubs_is_named(
    pushed: StandIn, made: Path, tmp_path: Path
) -> None:
    pushed.refusals["repos/create"] = [(200, {})]
    with pytest.raises(HubError, match=f"from {pushed.url}/{REPO}, got one that cannot be read"):
        push(REPO, make_bundle(encoder=made / "encoder.safetensors"))
    pushed.refusals["api/models"] = [(200, {})]
    assert_refused(tmp_path, HubError, "HF_ENDPOINT")


def test_the_card_of_an_earlier_model_has_its_own_steps(made: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(made / "pong_1", tmp_path / "pong_1")
    assert make_bundle(model=run_dir).run["n_timesteps"] == 2048
    zipped = save_model(tmp_path / "earlier.zip", n_timesteps=1024).read_bytes()
    about = {"mean_return": 3.0}
    write_checkpoint(run_dir / "checkpoints" / "best", 1024, {"model.zip": zipped}, about)
    bundle = make_bundle(model=run_dir, best=True)
    assert bundle.run["n_timesteps"] == 1024
    earlier = write_checkpoint(run_dir / "checkpoints", 1024, {"model.zip": zipped}, {})
    assert make_bundle(model=earlier / "model.zip").run["n_timesteps"] == 1024
    assert bundle.run["settings"] == {"n_pairs": 8, "temperature": 0.125}, "with the defaults"
