"""The files of a repository: their names, their sizes, and how each is checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_infonce.agents.saved_extractor import read_encoder
from rl_infonce.files.json_text import read_json
from rl_infonce.networks.encoder_file import load_encoder
from rl_infonce.runs.evaluation_file import read_evaluation
from rl_infonce.scoring.scores_file import read_scores

ENCODER, AGENT = "encoder.safetensors", "model.zip"
CARD, CONFIG = "README.md", "config.json"
EVALUATION, SCORES = "evaluation.json", "scores.json"

MOST_BYTES: Mapping[str, int] = {
    ENCODER: 2**30,
    AGENT: 2**30,
    CARD: 2**20,
    CONFIG: 2**20,
    EVALUATION: 2**24,
    SCORES: 2**26,
}
"""Most bytes by name; no other names are pushed or pulled, and none contains a folder."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def check_content(name: str, path: Path) -> None:
    """Raise unless a file is what its name says, and can be used without executing its content."""
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(
                f"Expected the content of {name}, got a pointer of Git LFS to it: whoever made the "
                "repository has not pushed the file itself."
            )
    _CHECKS[name](path)


def _check_text(path: Path) -> None:
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected {path.name} to be UTF-8, got: {error}.") from None


_CHECKS: Mapping[str, Callable[[Path], Any]] = {
    ENCODER: load_encoder,
    AGENT: read_encoder,
    CARD: _check_text,
    CONFIG: functools.partial(read_json, allow_nan=True),  # as in the encoder's own header
    EVALUATION: read_evaluation,
    SCORES: read_scores,
}
