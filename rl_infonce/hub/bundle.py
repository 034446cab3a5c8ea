"""Bundle the files to push, which were read and belong together, with what is known about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_agent import find_model, run_of
from rl_infonce.agents.saved_extractor import NotRebuildableError, read_encoder
from rl_infonce.agents.saved_policy import read_policy
from rl_infonce.checks import warn_user
from rl_infonce.files.digests import sha256_of
from rl_infonce.hub.files import AGENT, CONFIG, ENCODER, EVALUATION, SCORES
from rl_infonce.networks.encoder_file import describe, load_encoder, read_header
from rl_infonce.runs.evaluation_file import read_evaluation
from rl_infonce.runs.run_directory import read_record
from rl_infonce.runs.software import software, software_of
from rl_infonce.scoring.feature_sources import content_key
from rl_infonce.scoring.scores_file import read_scores

_OF_THIS_MACHINE = ("log_folder", "tensorboard_log", "pretrained")  # paths


@dataclass(frozen=True)
class Bundle:
    """Contents of files by name, and what a model card says about them.

    `has_policy` says whether `read_policy` also rebuilds the agent. `run` tells how it was trained,
    and `pretraining` what the encoder's file says about the origin of its weights.
    `names` maps the keys under which `scores` knows files to their names here.
    """

    files: Mapping[str, bytes]
    architecture: str
    game: str | None
    has_policy: bool
    run: Mapping[str, Any] = field(default_factory=dict)
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None
    scores: Mapping[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def make_bundle(
    *,
    encoder: Path | None = None,
    model: Path | None = None,
    best: bool = False,
    game: str | None = None,
    evaluation: Path | None = None,
    scores: Path | None = None,
) -> Bundle:
    """Return the bundle to push, after reading every file as those who pull it will.

    The model is SB3's zip or a run directory; with `best`, the run's model whose episodes returned
    most. The evaluation and the scores must be those of exactly these files. Without a game, the
    card names that of the run, the evaluation or the encoder's own training. A run's settings, seed
    and versions are included, but neither the machine's name nor those of its folders. A model
    keeps what SB3 saved in it: a warning says so if that is the folder of its curves.
    """
    if encoder is None and model is None:
        raise ValueError("Expected an encoder or a model to push, got neither.")
    contents: dict[str, bytes] = {}
    header, run, has_policy = None, dict[str, Any](), False
    architectures = []
    if model is not None:
        path = find_model(model, best=best)
        architectures.append(describe(read_encoder(path)))
        contents[AGENT] = path.read_bytes()
        saved, _ = read_model_zip(path)
        _warn_of_folder(path, saved)
        has_policy = _is_rebuildable(path)
        run_dir = run_of(model)
        if run_dir is not None:
            run = _of_run(run_dir, saved)
    if encoder is not None:
        architectures.insert(0, describe(load_encoder(encoder)))
        header = read_header(encoder)
        contents[ENCODER] = encoder.read_bytes()
    evaluated = None if evaluation is None else _evaluation_of(evaluation, contents)
    names = {content_key(content): name for name, content in contents.items()}
    scored = None if scores is None else _scores_of(scores, names)
    config = {"encoder": header, "run": run, "packed_with": software()}
    records = {CONFIG: config, EVALUATION: evaluated, SCORES: scored}
    contents |= {name: _json(record) for name, record in records.items() if record is not None}
    pretraining = (header or {}).get("provenance") or {}
    sources = (run, evaluated or {}, pretraining)
    known = game or next((source["game"] for source in sources if source.get("game")), None)
    return Bundle(
        contents,
        architectures[0],
        known,
        has_policy,
        run=run,
        pretraining=pretraining,
        evaluation=evaluated,
        scores=scored,
        names=names,
    )


def _warn_of_folder(path: Path, saved: Mapping[str, Any]) -> None:
    """Warn if SB3 saved in a model where its curves lie on this machine."""
    if (folder := saved.get("tensorboard_log")) is not None:
        warn_user(
            f"{path} tells the folder of its curves on this machine, {folder}. To keep that to "
            "yourself, set `model.tensorboard_log = None` and save the model again before you push."
        )


def _is_rebuildable(path: Path) -> bool:
    try:
        read_policy(path)
    except NotRebuildableError:
        return False
    return True


def _of_run(run_dir: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card says about a training, without the machine's folders and its name.

    `saved` is what SB3 wrote of the model, which may be a checkpoint of the run.
    """
    record = read_record(run_dir)
    loss = record["sessions"][-1].get("loss", {}) if record["sessions"] else {}
    given = {k: v for k, v in record["arguments"].items() if v is not None}
    settings = {k: v for k, v in (loss | given).items() if k not in _OF_THIS_MACHINE}
    return {
        "game": settings.pop("game", None) or settings.pop("env", None),
        "algorithm": settings.pop("algo", None),
        "seed": record["seed"],
        "n_timesteps": saved.get("num_timesteps"),
        "settings": settings,
        **software_of(record),
    }


def _evaluation_of(path: Path, contents: Mapping[str, bytes]) -> dict[str, Any]:
    record = read_evaluation(path)
    model = record.get("model")
    of = model.get("sha256") if isinstance(model, dict) else None
    if AGENT not in contents or of != sha256_of(contents[AGENT]):
        raise ValueError(
            f"Expected {path} to be about the model that is pushed, got the evaluation of "
            f"another model (SHA-256 {of}). Run `rl-infonce evaluate` with this model."
        )
    record["model"] = {"sha256": of}
    record.pop("command", None)
    return record


def _scores_of(path: Path, names: Mapping[str, str]) -> dict[str, Any]:
    content = read_scores(path)
    if not any(entry["encoder"] in names for entry in content["cells"]):
        raise ValueError(
            f"Expected {path} to have scores of what is pushed, got scores of other files: "
            f"{sorted(content['encoders'])}. Run `rl-infonce probe` with this file."
        )
    # A failure names files of this machine.
    content["cells"] = [entry for entry in content["cells"] if entry["status"] == "done"]
    for run in content["runs"]:
        run["command"] = "rl-infonce probe"  # without the folders that the command named
    for described in content["encoders"].values():
        described["name"] = Path(described["name"]).name
    return content


def _json(content: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=1)}\n".encode()
