"""Checkpoints of a training, which can be killed at any time and continues exactly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rl_infonce.checks import check_count, warn_user
from rl_infonce.files.durable import remove_partial
from rl_infonce.files.state_file import StateBytes, pack_state, unpack_state
from rl_infonce.resuming.best_model import BestModel, find_best, keep_best
from rl_infonce.resuming.model_bytes import model_bytes
from rl_infonce.resuming.model_state import (
    differing_settings,
    flat,
    get_run_state,
    set_run_state,
    set_streams,
)
from rl_infonce.resuming.nan_guard import check_finite
from rl_infonce.resuming.replay_shards import (
    ReplayShards,
    UnknownBufferError,
    end_last_episode,
    load_replay,
)
from rl_infonce.resuming.run_logs import CSVFormat, EpisodeLogCallback
from rl_infonce.runs.checkpoints import (
    Checkpoint,
    checkpoints,
    latest_checkpoint,
    newest_step,
    prune_checkpoints,
    write_checkpoint,
)
from rl_infonce.runs.software import differing_versions, software
from rl_infonce.sb3 import make_updates_due
from rl_infonce.sb3.callbacks import InfoNCECallback

_MOST_FAILURES = 5
_MISFITS = (
    *(ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError),
    SystemError,  # ale_py raises this for bytes that are not an emulator's state
)


class NotSavedError(OSError):
    """The disk refused five checkpoints in a row."""


class ResumeCallback(BaseCallback):
    """Save a training so that it can be killed at any time and continue exactly.

    The same script starts and continues a run:

        callback = ResumeCallback("runs/pong")
        callback.restore(model)  # False the first time
        model.learn(1_000_000 - model.num_timesteps, reset_num_timesteps=False, callback=callback)

    A training that was killed and restored ends with exactly the weights of an uninterrupted one,
    on the same machine and versions, on the CPU or deterministic CUDA, for environments whose state
    can be read (`rl_infonce.resuming.env_state`). A warning names once what cannot be read; new
    episodes then begin.

    Checkpoints are taken between rollouts, and are whole or absent whenever the process dies. If
    the disk refuses one, there is a warning; five in a row end the training with `NotSavedError`,
    unless it is at its end. Nothing is unpickled when they are read, and every byte is compared
    with its digest. A malicious checkpoint of an Atari game could still crash the process, because
    ale_py accepts any bytes as the state of an emulator. Put this callback last.

    Beside the state lies SB3's `model.zip`, for `PPO.load`. The model with the highest
    `rollout/ep_rew_mean` at a checkpoint is kept also, once SB3's window of 100 episodes is full.

    Args:
        folder: Folder for the checkpoints of this run alone; the callback would take those of
            another run for its own.
        save_freq: Number of calls of `env.step` between checkpoints, at least 1, each one step of
            all `n_envs` environments; the checkpoint waits for the next rollout to start.
        n_kept: Number of checkpoints to keep, at least 1.

    Attributes:
        is_exact: Whether the run equals, and will equal when it is restored, one that was never
            interrupted.
        saved_step: `num_timesteps` of the last checkpoint that this object wrote; None before.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, folder: str | os.PathLike[str], save_freq: int = 10_000, *, n_kept: int = 2
    ) -> None:
        super().__init__()
        check_count("save_freq", save_freq)
        check_count("n_kept", n_kept)
        self.folder = Path(folder)
        self.save_freq = save_freq
        self.n_kept = n_kept
        self.is_exact = True
        self.saved_step: int | None = None
        self._shards = ReplayShards(self.folder)
        self._restored: tuple[Path, Mapping[str, Any]] | None = None
        self._first_step: int | None = None
        self._begun_at = 0
        self._last_save = 0
        self._n_failures = 0
        self._put_off = 0
        self._stop_asked = False
        self._stops = False

    # -- continuing -------------------------------------------------------------------------------

    def restore(
        self, model: BaseAlgorithm, *, inexact: bool = False, fall_back: bool = False
    ) -> bool:
        """Set a model to the state of the newest checkpoint; return False if there is none.

        Args:
            model: A model built as the saved one was, with its environment, before `learn`.
            inexact: Whether to continue although settings or versions differ, or the environment's
                state cannot be set; episodes and callbacks then begin anew: EvalCallback forgets
                its best model and replaces the file.
            fall_back: Whether to take the newest whole checkpoint if the newest is damaged.

        Raises:
            DamagedCheckpointError: If a file, which the message names, was changed or cut short.
            ValueError: If settings or versions differ, which the message lists, or if the state
                does not fit the model; what was set until then stays set.
            OSError: If a file cannot be read.
        """
        remove_partial(self.folder)
        try:
            checkpoint = latest_checkpoint(self.folder, fall_back=fall_back)
        except FileNotFoundError:
            return False
        state = _read_state(checkpoint)
        with _misfits_named(checkpoint.path):
            differing = [*_differing_versions(checkpoint), *differing_settings(model, state)]
        if differing and not inexact:
            raise ValueError(
                f"Expected the settings and versions of {checkpoint.path} to go on exactly, got: "
                f"{'; '.join(differing)}. Change them back, or resume with inexact=True "
                "(--resume-inexact)."
            )
        exact = not differing
        with _misfits_named(checkpoint.path):
            set_run_state(model, state, exact=exact)
            if isinstance(model, OffPolicyAlgorithm):
                self._restore_replay(model, state, exact=exact)
            self.is_exact = exact and not state["inexact"] and bool(checkpoint.about["is_exact"])
        self._restored = (checkpoint.path, state) if exact else None
        self._first_step = model.num_timesteps
        return True

    def _restore_replay(
        self, model: OffPolicyAlgorithm, state: Mapping[str, Any], *, exact: bool
    ) -> None:
        saved, buffer = state["replay"], cast("ReplayBuffer", model.replay_buffer)
        if saved is None:
            self._put_off_updates(model, f"The rows of {type(buffer).__name__} were not saved")
            return
        try:
            load_replay(buffer, saved, self.folder)
        except ValueError as error:
            if exact:
                raise
            buffer.reset()
            self._put_off_updates(model, str(error))
            return
        self._put_off = state["put_off"]
        model.learning_starts += self._put_off
        if exact and state["env"] is not None:
            self._shards.adopt(saved)
        else:  # its rows are written anew then
            end_last_episode(buffer)

    def _put_off_updates(self, model: OffPolicyAlgorithm, why: str) -> None:
        """Let a replay buffer without its rows fill again before updates continue."""
        self._put_off = model.num_timesteps
        model.learning_starts += self._put_off
        acts = "" if model.use_sde and model.use_sde_at_warmup else ", and actions are random"
        warn_user(
            f"{why.removesuffix('.')}: updates go on at step {model.learning_starts}, when the "
            f"buffer has `learning_starts` new steps. SB3 warms up until then{acts}.",
        )

    @property
    def best(self) -> BestModel | None:
        """The best model so far, for `PPO.load(callback.best.path)`, or None."""
        return find_best(self.folder)

    # -- saving -----------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Save at the end of the current update and leave `learn`; signal handlers may call it."""
        self._stop_asked = True

    @property
    def stopped(self) -> bool:
        """Whether the last `learn` left early because it was asked to."""
        return self._stops

    def _init_callback(self) -> None:
        if self._first_step not in (None, self.model.num_timesteps):
            raise ValueError(
                f"Expected `learn` to go on at the restored step {self._first_step}, got "
                f"{self.model.num_timesteps}: its checkpoints would be taken for older ones. Pass "
                "reset_num_timesteps=False."
            )
        found = newest_step(self.folder)
        if (
            self._first_step is None
            and self.saved_step is None
            and found > self.model.num_timesteps
        ):
            raise ValueError(
                f"Expected no checkpoints of another run in {self.folder}, got one of step "
                f"{found}, which those of this run, from step {self.model.num_timesteps} on, would "
                "replace. Call restore(model) before `learn` to go on from it, or name another "
                "folder."
            )
        self._first_step = None
        self._stops = False
        if self._restored is None:  # `learn` may count steps anew, by which rows are known
            self._shards = ReplayShards(self.folder)

    def _on_training_start(self) -> None:
        if isinstance(self.parent, EventCallback):  # which tells nothing of rollouts
            raise ValueError(
                "Expected ResumeCallback to hear of every rollout, got it inside "
                f"{type(self.parent).__name__}. Pass both to `learn` in one list."
            )
        _check_order(self, self._others())
        self._begun_at = self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        if self._restored is not None:
            (path, state), self._restored = self._restored, None
            with _misfits_named(path):
                set_streams(self.model, state, self._others())
            self._last_save = self.n_calls
        elif self._stop_asked or self.n_calls - self._last_save >= self.save_freq:
            self._try_to_save()
        if self._stop_asked:
            self._stop_asked, self._stops = False, True

    def _on_step(self) -> bool:
        return not self._stops

    def _on_training_end(self) -> None:
        # A training that stops in the middle of a rollout continues from the checkpoint before it;
        # one with nothing left to do has not set the streams that a checkpoint would hold.
        has_trained = self.num_timesteps > self._begun_at
        if has_trained and not self._stops and self.num_timesteps >= self.locals["total_timesteps"]:
            make_updates_due(self.model)  # they read a rollout that no checkpoint holds
            try:
                self._save()
            except OSError as error:
                end = "training has ended, and `model.save` keeps the model."
                warn_user(f"{self._unsaved(error)}; {end}", RuntimeWarning)

    def _others(self) -> Iterable[BaseCallback]:
        """Return all callbacks of the training, this one also for its count of calls."""
        root = self.locals.get("callback", self)
        return root.callbacks if isinstance(root, CallbackList) else [root]

    def _try_to_save(self) -> None:
        """Save or warn; a disk that is full now may have room an interval later."""
        try:
            self._save()
        except OSError as error:
            self._n_failures += 1
            what = self._unsaved(error)
            if self._n_failures >= _MOST_FAILURES:
                raise NotSavedError(f"{what}; {_MOST_FAILURES} tries in a row failed.") from error
            warn_user(
                f"{what}, training goes on, and the next try comes after "
                f"{self.save_freq * self.model.n_envs} more steps "
                f"(failure {self._n_failures} of {_MOST_FAILURES}).",
                RuntimeWarning,
            )

    def _unsaved(self, error: OSError) -> str:
        before = "The one before it is whole" if checkpoints(self.folder) else "None is before it"
        return f"Step {self.num_timesteps} has no checkpoint: {error}. {before}"

    def _save(self) -> None:
        model = self.model
        self._last_save = self.n_calls
        check_finite(model, has_checkpoint=bool(checkpoints(self.folder)))
        _sync_tables(model, self._others())
        state = get_run_state(model, self._others())
        state["replay"] = self._replay(model, state["inexact"])
        state["put_off"] = self._put_off
        if self._put_off:  # the script says the same as before
            state["settings"]["learning_starts"] -= self._put_off
        if state["inexact"] and self.is_exact:
            self.is_exact = False
            warn_user(
                f"This run cannot be resumed exactly: {' '.join(state['inexact'])}",
            )
        # First: a run that is killed between the two saves both again.
        keep_best(self.folder, model, lambda: model_bytes(model))
        packed = pack_state(state)
        files = {
            "state.json": packed.text,
            "state.safetensors": packed.tensors,
            "model.zip": model_bytes(model),
        }
        about = {**software(), "is_exact": self.is_exact, "n_envs": model.n_envs}
        shared = (state["replay"] or {}).get("sha256", {})
        path = write_checkpoint(self.folder, self.num_timesteps, files, about, shared=shared)
        prune_checkpoints(self.folder, self.n_kept, newest=path)
        self.saved_step = self.num_timesteps
        self._n_failures = 0

    def _replay(self, model: BaseAlgorithm, inexact: list[str]) -> dict[str, Any] | None:
        buffer = getattr(model, "replay_buffer", None)
        if buffer is None:
            return None
        try:
            return self._shards.save(buffer, model.num_timesteps // model.n_envs)
        except UnknownBufferError as error:
            inexact.append(str(error))
            return None


def _check_order(own: BaseCallback, callbacks: Iterable[BaseCallback]) -> None:
    later = list(flat(callbacks))  # with a progress bar, SB3 nests them in a list
    later = later[later.index(own) + 1 :] if own in later else []
    if any(isinstance(each, InfoNCECallback) and each.decoupled for each in later):
        raise ValueError(
            "Expected InfoNCECallback(decoupled=True) before ResumeCallback, got it after: its "
            "updates would be pending at every checkpoint. Change the callbacks' order in `learn`."
        )


def _sync_tables(model: BaseAlgorithm, callbacks: Iterable[BaseCallback]) -> None:
    """Write all rows to disk before a checkpoint, after which they are not written again."""
    for each in (*flat(callbacks), *model.logger.output_formats):
        if isinstance(each, EpisodeLogCallback | CSVFormat):
            each.sync()


def _read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    files = (checkpoint.path / name for name in ("state.json", "state.safetensors"))
    packed = StateBytes(*(file.read_bytes() for file in files))
    with _misfits_named(checkpoint.path):
        return dict(unpack_state(packed))


@contextlib.contextmanager
def _misfits_named(path: Path) -> Iterator[None]:
    """Name the checkpoint whose state cannot be set: its bytes are whole, but may be anyone's."""
    try:
        yield
    except _MISFITS as error:
        raise ValueError(
            f"Expected a state of this model in {path}, got {type(error).__name__}: {error}"
        ) from error


def _differing_versions(checkpoint: Checkpoint) -> list[str]:
    own = software()["versions"]
    return [
        f"{name} is {own.get(name)} (was {former})"
        for name, former in differing_versions(own, checkpoint.about["versions"]).items()
    ]
