"""Good files of every format that the package reads, small, and how each is read."""

import csv
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3 import DQN
from torch import nn

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.atari import load_frames
from rl_infonce.atari.manifest import write_manifest
from rl_infonce.atari.shards import ShardWriter, columns
from rl_infonce.files.csv_log import CSVLog
from rl_infonce.networks.encoder_file import load_encoder, save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import Progress
from rl_infonce.pretraining.checkpoint import read_checkpoint, write_checkpoint
from rl_infonce.resuming.resume_callback import ResumeCallback
from rl_infonce.runs.checkpoints import DamagedCheckpointError, checkpoints
from rl_infonce.runs.run_directory import new_record, read_record, write_record
from rl_infonce.scoring.scores_file import ProbeKey, ScoresFile
from rl_infonce.scoring.scores_page import scores_table
from tests.sb3.worlds import ALGORITHMS, policy_kwargs

RUN_SETTINGS = {"batch_size": 4, "seed": 0}
SCORES_SETTINGS = {
    "view": "agent",
    "n_frames": 640,
    "policy": "random",
    "data_seed": 3,
    "labels": "corrected",
    "precision": "fp32",
}


class Format(NamedTuple):
    """A kind of file, or of folder.

    Attributes:
        write: Puts a good one into a folder.
        read: Returns what later code relies on, of a folder: equal for files of one structure.
        error: What the reader documents for files that are not good.
        of_nothing: What it documents for a file that is missing.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    error: type[Exception] = ValueError
    of_nothing: type[Exception] = FileNotFoundError


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def encoder_structure(encoder: Any) -> Any:
    return type(encoder), encoder.image_shape, shapes_of(encoder.state_dict())


# -- models of SB3 ----------------------------------------------------------------------------


def write_model(folder: Path) -> None:
    ALGORITHMS["PPO"](policy_kwargs(features_dim=8)).save(folder / "model.zip")


def read_model(folder: Path) -> Any:
    """Return the weights, too: they have checksums."""
    encoder = read_encoder(folder / "model.zip")
    tensors = encoder.state_dict().items()
    return encoder_structure(encoder), {name: tensor.numpy().tobytes() for name, tensor in tensors}


# -- encoders and pretraining -----------------------------------------------------------------


def small_encoder(seed: int = 0) -> PixelEncoder:
    return PixelEncoder((1, 36, 36), 8, generator=torch.Generator().manual_seed(seed))


def write_encoder(folder: Path) -> None:
    save_encoder(small_encoder(), folder / "encoder.safetensors", provenance={"game": "pong"})


class SmallObjective(nn.Module):
    """As much of an objective as a checkpoint knows, in 40 kB."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(20, 100)
        self.head = nn.Linear(100, 2)


def pretraining(*, started: bool) -> tuple[Any, torch.optim.Optimizer]:
    """Return an objective and its optimizer; started ones have taken a step."""
    objective = SmallObjective()
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    if started:
        for parameter in objective.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return objective, optimizer


_pretraining_to_read = cache(partial(pretraining, started=False))
_dqn_to_read = cache(lambda: small_dqn())  # readers set all of it anew


def write_pretraining(folder: Path) -> None:
    objective, optimizer = pretraining(started=True)
    history: list[dict[str, float | None]] = [{"step": 1, "train_accuracy": None}]
    progress = Progress(step=1, n_steps=9, best_loss=2.5, history=history)
    path, best = folder / "checkpoint.safetensors", objective.encoder.state_dict()
    write_checkpoint(path, objective, optimizer, best, progress, RUN_SETTINGS)


def read_pretraining(folder: Path) -> Any:
    objective, optimizer = _pretraining_to_read()
    path = folder / "checkpoint.safetensors"
    progress, best = read_checkpoint(path, objective, optimizer, RUN_SETTINGS)
    kinds = {name: type(value) for name, value in vars(progress).items()}
    moments = [shapes_of(each) for each in optimizer.state.values()]
    return kinds, shapes_of(best), moments


# -- runs -------------------------------------------------------------------------------------


def small_dqn() -> DQN:
    kwargs: dict[str, Any] = {"learning_starts": 8, "batch_size": 4, "buffer_size": 16}
    return DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [4]}, seed=0, **kwargs)


def write_run(folder: Path) -> None:
    small_dqn().learn(24, callback=ResumeCallback(folder, save_freq=10))
    assert len(checkpoints(folder)) == 2


def is_of_the_newest(file: str, folder: Path) -> bool:
    """Return whether a file of a run is one of its newest checkpoint, or named by it."""
    newest = checkpoints(folder)[0]
    return newest.name in file or file in (newest / "MANIFEST.json").read_text()


def read_run(folder: Path, *, fall_back: bool = False) -> Any:
    model = _dqn_to_read()
    assert ResumeCallback(folder).restore(model, fall_back=fall_back)
    return model.num_timesteps, shapes_of(model.policy.state_dict())


def write_run_record(folder: Path) -> None:
    session = {"start_time": "2025-01-01T00:00:00+00:00", "first_step": 0, "wall_seconds": 1.5}
    write_record(folder, {**new_record({"game": "pong", "lr": 1e-4}, 3), "sessions": [session]})


def read_run_record(folder: Path) -> Any:
    record = read_record(folder)
    return record["arguments"], type(record["seed"]), len(record["sessions"])


def write_log(folder: Path) -> None:
    log = CSVLog(folder / "progress.csv", 0)
    for step in range(1, 60):
        log.append(step, {"loss": step / 7, "name": 'a "b", c'})
    log.close()


def read_log(folder: Path) -> Any:
    copy = folder / "read" / "progress.csv"
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(folder / "progress.csv", copy)
    log = CSVLog(folder / "progress.csv", 10**9)
    log.append(1, {"loss": 1.0})
    log.close()
    with (folder / "progress.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    shutil.copyfile(copy, folder / "progress.csv")
    last = dict(zip(header, rows[-1], strict=True))
    return {len(row) - len(header) for row in rows}, last["step"], last["loss"]


# -- frames and scores ------------------------------------------------------------------------

FRAME_SETTINGS = {
    "game": "pong",
    "policy": "random",
    "seed": 3,
    "n_steps": 6,
    "n_shards": 2,
    "views": ["agent"],
    "screen_shape": [210, 160],
    "actions": ["NOOP", "FIRE"],
    "ale_py": "0.11",
}


def write_frames(folder: Path) -> None:
    content = columns({"views": ["agent"], "screen_shape": [210, 160]})
    rng = np.random.default_rng(0)
    shards = []
    for index in range(2):
        writer = ShardWriter(folder, index, 3, content)
        for row in range(3):  # of one game with one life
            for buffer in writer.buffers.values():
                buffer[writer.position] = rng.integers(0, 2, buffer.shape[1:])
            writer.buffers["game_starts"][row] = row == 0
            writer.buffers["episode_ids"][row] = 3 * index
            writer.advance()
        shards.append(writer.commit())
    write_manifest(folder, {"settings": FRAME_SETTINGS, "versions": {}, "shards": shards})


def read_frames(folder: Path) -> Any:
    frames = load_frames(folder)
    labelled = frames.labelled("agent")
    content = [frames.column(name).tobytes() for name in ("ram", "episode_ids", "actions")]
    return frames.game, labelled.observations[:].tobytes(), sorted(labelled.labels), content


def write_scores(folder: Path) -> None:
    scores = ScoresFile(folder, SCORES_SETTINGS)
    scores.replace_encoder("m", {"name": "majority", "kind": "majority", "description": ""})
    scores.content["runs"].append({"command": "rl-infonce probe"})
    figures = {"f1_weighted": 0.5, "f1_macro": 0.25, "accuracy": 0.5}
    found = {
        "mean": figures,
        "categories": {"agent_localization": figures},
        "variables": {"player_y": figures},
        "intervals": {"mean": [0.25, 0.75]},
        "not_probed": {"clock": "it stands still"},
    }
    for seed in range(2):
        scores.put(ProbeKey("pong", "m", seed, "converged"), status="done", scores=found)
    scores.put(ProbeKey("pong", "m", 2, "converged"), status="failed", error="ValueError")


def read_scores(folder: Path) -> Any:
    scores = ScoresFile(folder, SCORES_SETTINGS)
    before = (folder / "scores.json").read_bytes()
    assert scores_table(scores.content)
    scores.done(ProbeKey("pong", "m", 0, "converged"))
    scores.put(ProbeKey("pong", "m", 2, "converged"), status="failed", error="ValueError")
    scores.replace_encoder("other", {"name": "a", "kind": "file", "description": ""})
    (folder / "scores.json").write_bytes(before)
    kinds = {name: type(value) for name, value in scores.content.items()}
    names = (*ProbeKey._fields, "status")
    cells = {tuple(type(cell[name]) for name in names) for cell in scores.content["cells"]}
    return kinds, cells, scores.content["settings"]


FORMATS: dict[str, Format] = {
    "model": Format(write_model, read_model),
    "encoder": Format(
        write_encoder, lambda d: encoder_structure(load_encoder(d / "encoder.safetensors"))
    ),
    "pretraining": Format(write_pretraining, read_pretraining),
    "run": Format(write_run, read_run, DamagedCheckpointError, DamagedCheckpointError),
    "record": Format(write_run_record, read_run_record),
    "log": Format(write_log, read_log),
    "frames": Format(write_frames, read_frames),
    "scores": Format(write_scores, read_scores),
}


@cache
def good_files(name: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a good one by their place in its folder, after writing it once."""
    folder.mkdir(parents=True)
    FORMATS[name].write(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
