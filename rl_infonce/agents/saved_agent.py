"""A saved agent that is to play: where it is, of which game, and what acts."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_infonce.agents.epsilon_greedy import EpsilonGreedyPolicy, epsilon_greedy_policy
from rl_infonce.agents.model_zip import read_model_zip
from rl_infonce.agents.saved_extractor import NotRebuildableError
from rl_infonce.agents.saved_policy import SavedPolicyNetwork, read_policy
from rl_infonce.resuming.best_model import find_best
from rl_infonce.runs.run_directory import read_record

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy


def find_model(place: Path, *, best: bool = False) -> Path:
    """Return the model file of an agent.

    Args:
        place: SB3's zip, with or without the ending, or the directory of a run of
            `rl-infonce train`, whose last model is taken.
        best: Take the run's model whose episodes returned most.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If `best` is asked of a file.
    """
    if best:
        if not place.is_dir():
            raise ValueError(f"Expected a run directory beside --best, got {place}.")
        found = find_best(place / "checkpoints")
        if found is None:
            raise FileNotFoundError(
                f"Expected a best model in {place}, got none: a run keeps one when 100 episodes "
                "have ended. Leave out --best to take the last model."
            )
        return found.path
    path = model_file(place)
    if path is None:
        raise FileNotFoundError(
            f"Expected a model saved by SB3 or a run directory with a model.zip, got "
            f"{found_instead(place)}."
        )
    return path


def found_instead(place: Path) -> str:
    """Return what there is where `model_file` finds none, for a message."""
    if (place / "run.json").is_file():
        return (
            f"the run {place} without a model.zip, which it writes when it ends or is stopped. Go "
            f"on with it: rl-infonce train --resume {place}"
        )
    return f"the folder {place}, which has none" if place.is_dir() else f"{place}: no such file"


def model_file(place: Path) -> Path | None:
    """Return the file that a run directory or a name, with or without ".zip", stands for."""
    candidates = (place / "model.zip", place, Path(f"{place}.zip"))
    return next((path for path in candidates if path.is_file()), None)


def game_of(place: Path) -> str | None:
    """Return the game that `run.json` in a run directory, or beside a model, names; None elsewhere.

    Raises:
        ValueError: If `run.json` is no record of a run.
        OSError: If it cannot be read.
    """
    folder = place if place.is_dir() else place.parent
    if not (folder / "run.json").is_file():
        return None
    game = read_record(folder)["arguments"].get("game")
    return game if isinstance(game, str) else None


def open_policy(path: Path, *, trust_pickle: bool = False) -> SavedPolicyNetwork | BasePolicy:
    """Return what chooses the actions of a saved model.

    No code of the file is executed, unless it is the only way and is allowed; then a warning says
    so.

    Args:
        path: A file of `model.save`.
        trust_pickle: Whether a model that cannot be rebuilt safely may execute its own code.

    Raises:
        NotRebuildableError: If it would have to and may not.
        ValueError: If the file is no model, or is damaged or made to harm.
        TypeError: If the observations are no uint8 images.
        OSError: If the file cannot be read.
    """
    try:
        return read_policy(path)
    except NotRebuildableError:
        if not trust_pickle:
            raise
    from rl_infonce.agents.trusted_model import read_trusted_encoder

    warnings.warn(
        f"Executing the code that {path} contains, with all your rights (--trust-pickle).",
        stacklevel=2,
    )
    return read_trusted_encoder(path).policy


def named_player(
    place: Path, epsilon: float, seed: int, *, deterministic: bool, trust_pickle: bool
) -> tuple[EpsilonGreedyPolicy, str]:
    """Return what plays as a saved agent does, and a name of all that decides its actions.

    Args:
        place: As of `find_model`.
        epsilon: Probability of a uniform action.
        seed: Of the actions.
        deterministic: Whether the best action is taken instead of a sampled one.
        trust_pickle: As of `open_policy`.

    Raises:
        Error: As `find_model` and `open_policy`.
    """
    path = find_model(place)
    model = open_policy(path, trust_pickle=trust_pickle)
    rng = np.random.default_rng(seed)
    policy = epsilon_greedy_policy(model, epsilon, rng, deterministic=deterministic)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    choice = "deterministic" if deterministic else "sampled"
    return policy, f"model sha256={digest} {choice} epsilon={epsilon:g}"


def saved_exploration_rate(path: Path) -> float:
    """Return the share of uniform actions that a saved DQN plays with; 0 if it samples by itself.

    Raises:
        ValueError: If the file is no model.
        OSError: If the file cannot be read.
    """
    rate = read_model_zip(path).text.get("exploration_rate", 0.0)
    is_share = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
    return float(rate) if is_share else 0.0
