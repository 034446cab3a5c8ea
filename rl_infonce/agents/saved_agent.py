"""Find a saved agent, the game that it plays, and its policy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy, epsilon_greedy_policy
from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import (
    RecurrentPolicyError,
    SavedPolicyNetwork,
    read_policy,
)
from rl_infonce.checks import warn_user
from rl_infonce.files.digests import sha256_of_file
from rl_infonce.files.json_text import read_json
from rl_infonce.resuming.best_model import find_best
from rl_infonce.runs.run_directory import RECORD, read_record

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy

_STEP = re.compile(r"step_\d+")
"""Folder of a checkpoint, or of a best model."""


def find_model(place: Path, *, best: bool = False) -> Path:
    """Return the model file of an agent, given SB3's zip, with or without the ending, or its run.

    A run gives its last model, or with `best` the model whose episodes returned most.
    """
    if best:
        if not place.is_dir():
            raise ValueError(f"Expected a run directory with --best, got {place}.")
        found = find_best(place / "checkpoints")
        if found is None:
            raise FileNotFoundError(
                f"Expected a best model in {place}, got none: a run keeps one once 100 episodes "
                "have ended. Leave out --best to take the last model."
            )
        return found.path
    return existing_model(place, "a model saved by SB3 or a run directory with a model.zip")


def existing_model(place: Path, wanted: str) -> Path:
    """Return the model file at a place, or raise a FileNotFoundError that says what is wanted."""
    path = model_file(place)
    if path is None:
        raise FileNotFoundError(f"Expected {wanted}, got {found_instead(place)}")
    return path


def found_instead(place: Path) -> str:
    """Return the end of a message: what is at a place where `model_file` finds no model."""
    if (place / RECORD).is_file():
        return (  # without a full stop, so that the command can be pasted
            f"the run {place} without a model.zip, which a run writes when it ends or is stopped. "
            f"Continue the run: {shlex.join(['rl-infonce', 'train', '--resume', str(place)])}"
        )
    return f"the folder {place}, which has none." if place.is_dir() else f"{place}: no such file."


def model_file(place: Path) -> Path | None:
    """Return the file that a run directory or a name, with or without ".zip", stands for."""
    candidates = (place / "model.zip", place, Path(f"{place}.zip"))
    return next((path for path in candidates if path.is_file()), None)


def game_of(place: Path) -> str | None:
    """Return the game of the run that a place is or lies in, or None."""
    return _argument(place, "game")


def warn_of_another_game(place: Path, game: str) -> None:
    """Warn if the run that a place is or lies in was trained on another game than this one."""
    trained_on = game_of(place)
    if trained_on not in (None, game):
        warn_user(f"The agent of {place} was trained on {trained_on}, and plays {game}.")


def env_of(place: Path) -> str | None:
    """Return the id of the environment, if it is no game, of such a run, or None."""
    return _argument(place, "env")


def run_of(place: Path) -> Path | None:
    """Return the run directory that a place is or whose model it is, or None.

    Checkpoints and best models lie in folders of their own. A run.json of other software is none.
    """
    path = model_file(place) or place
    folders = [place]
    if path.suffix == ".zip":
        folder = path.absolute().parent
        folders += [folder, *_above_checkpoint(folder)]
    return next((each for each in folders if _has_record(each)), None)


def _above_checkpoint(folder: Path) -> list[Path]:
    """Return the folder of the run, in a list, of a checkpoint or of a best model."""
    parent = folder.parent.parent if folder.parent.name == "best" else folder.parent
    is_checkpoint = _STEP.fullmatch(folder.name) and parent.name == "checkpoints"
    return [parent.parent] if is_checkpoint else []


def _has_record(folder: Path) -> bool:
    """Return whether a folder has a record of ours; a damaged one is for its reader to name."""
    path = folder / RECORD
    if not path.is_file():
        return False
    try:
        record = read_json(path)
    except ValueError:
        return True
    return isinstance(record, dict) and "arguments_sha256" in record


def _argument(place: Path, name: str) -> str | None:
    run_dir = run_of(place)
    value = None if run_dir is None else read_record(run_dir)["arguments"].get(name)
    return value if isinstance(value, str) else None


def open_policy(path: Path, *, trust_pickle: bool = False) -> SavedPolicyNetwork | BasePolicy:
    """Return the policy of a saved model, whose observations are uint8 images.

    With `trust_pickle`, a model that cannot be rebuilt safely executes its own code, and a
    warning says so; without, NotRebuildableError says what its code is needed for. A recurrent
    policy is refused in either case.
    """
    try:
        return read_policy(path)
    except RecurrentPolicyError:
        raise
    except NotRebuildableError:
        if not trust_pickle:
            raise
    from rl_infonce.agents.trusted_model import read_trusted_encoder

    warn_user(
        f"The code in {path} is being executed with all your rights (--trust-pickle).",
    )
    return read_trusted_encoder(path).policy


def named_player(
    place: Path, epsilon: float, seed: int, *, deterministic: bool, trust_pickle: bool
) -> tuple[EpsilonGreedyPolicy, str]:
    """Return a policy that plays as a saved agent, and a name for all that decides its actions.

    The errors are those of `find_model` and `open_policy`.
    """
    path = find_model(place)
    model = open_policy(path, trust_pickle=trust_pickle)
    rng = np.random.default_rng(seed)
    policy = epsilon_greedy_policy(model, epsilon, rng, deterministic=deterministic)
    choice = "deterministic" if deterministic else "sampled"
    return policy, f"model sha256={sha256_of_file(path)} {choice} epsilon={epsilon:g}"


def saved_exploration_rate(path: Path) -> float:
    """Return the exploration rate of a saved DQN; 0 for a model that samples its actions."""
    text, _ = read_model_zip(path)
    rate = text.get("exploration_rate", 0.0)
    is_share = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
    return float(rate) if is_share else 0.0
