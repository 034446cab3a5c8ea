"""What `run.json` says about a training session while it trains and when it has ended."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.device import hardware_name
from rl_infonce.runs.run_directory import now, write_record
from rl_infonce.runs.software import software
from rl_infonce.sb3.callbacks import InfoNCECallback, trained_extractors
from rl_infonce.settings import InfoNCESettings, defaults


class SessionRecord:
    """The newest session of a run that this process holds; its record is changed in place."""

    def __init__(self, run_dir: Path, record: dict[str, Any]) -> None:
        self._run_dir, self._record = run_dir, record
        self._session: dict[str, Any] = {}

    def begin(
        self, model: BaseAlgorithm, n_timesteps: int, callbacks: Sequence[BaseCallback]
    ) -> None:
        """Note who trains what, from which step on and up to which one."""
        self._session = {
            "start_time": now(),
            "first_step": model.num_timesteps,
            "n_timesteps": n_timesteps,
            "process": os.getpid(),
            "host": platform.node(),
            "hardware": hardware_name(model.device),
            # It holds the defaults also, which another version may change.
            "loss": _loss_of(model, callbacks),
            **software(),
        }
        self._record["sessions"].append(self._session)
        self._record.update(status="running", device=str(model.device))
        write_record(self._run_dir, self._record)

    def end(self, n_trained: int, status: str, seconds: float, saved_step: int | None) -> None:
        """Note how the session ended: "done", "interrupted" or "failed".

        The steps are those of the whole run, the seconds those of this session; the record holds
        the notes even if it cannot be written.
        """
        record = self._record
        n_steps = n_trained - self._session["first_step"]
        self._session.update(
            end_time=now(),
            wall_seconds=round(seconds, 3),
            last_step=n_trained,
            saved_step=saved_step,
        )
        record.update(
            status=status,
            end_time=now(),
            wall_seconds=round(sum(s.get("wall_seconds", 0.0) for s in record["sessions"]), 3),
            n_timesteps_done=n_trained,
            steps_per_second=round(n_steps / seconds, 1),
        )
        write_record(self._run_dir, record)


def _loss_of(model: BaseAlgorithm, callbacks: Sequence[BaseCallback]) -> dict[str, Any]:
    extractor = trained_extractors(model.policy)[0]  # those of actor and critic agree
    of_updates = {
        f"decoupled_{name}": getattr(each, name)
        for each in callbacks
        if isinstance(each, InfoNCECallback) and each.decoupled
        for name in ("learning_rate", "n_updates")
    }
    return {**asdict(extractor.settings), "horizons": list(extractor.horizons), **of_updates}


def noted_loss(record: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of the loss of a session, or None of one that noted nothing.

    What the session does not name it was given, or had by default.
    """
    loss = session.get("loss")
    if not isinstance(loss, Mapping):  # earlier versions did not note it
        return None
    given = {name: value for name, value in record["arguments"].items() if value is not None}
    # Earlier versions did not note all settings that a run had, and let no algorithm decide these.
    earlier = {"with_observation": True, "select_inputs": False, "pairs_from": "buffer"}
    former = {**defaults(InfoNCESettings), **earlier}
    return {name: given.get(name, value) for name, value in former.items()} | dict(loss)


def differing_losses(
    record: Mapping[str, Any], model: BaseAlgorithm, callbacks: Sequence[BaseCallback]
) -> list[str]:
    """Return, in words, how the loss differs from that of the session that saved a checkpoint.

    The model was restored from the checkpoint; a session that began there did not save it.
    """
    n_trained = model.num_timesteps
    trained = [each for each in record["sessions"] if each.get("first_step", 0) < n_trained]
    was = noted_loss(record, trained[-1]) if trained else None
    if was is None:
        return []
    own = json.loads(json.dumps(_loss_of(model, callbacks)))  # as a record gives it back
    return [f"{name} is {new!r} (was {old!r})" for name, new, old in differing_settings(own, was)]


def differing_settings(
    own: Mapping[str, Any], former: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of the settings in which two losses differ.

    Each version of the package knows some that another does not; these do not count.
    """
    for name in sorted(own.keys() & former.keys()):
        if own[name] != former[name]:
            yield name, own[name], former[name]
