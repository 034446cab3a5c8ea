"""Open a training in its run directory, train it to its end or to a signal, and save it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.files.durable import replace_bytes
from rl_infonce.resuming.nan_guard import NanGuardCallback
from rl_infonce.resuming.resume_callback import NotSavedError, ResumeCallback
from rl_infonce.resuming.run_logs import EpisodeLogCallback, run_logger
from rl_infonce.runs.run_directory import RECORD, claim_run_directory, hold_run, made_folder
from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.sb3.binding import unfit_for_attaching
from rl_infonce.sb3.callbacks import (
    check_not_isolated,
    decoupled_callback,
    trained_extractors,
)
from rl_infonce.training.curves_folder import curves_folder
from rl_infonce.training.plan import ENCODER, TrainingPlan, planned
from rl_infonce.training.progress_bar import progress_bar
from rl_infonce.training.run_model import close_env, make_model, save_model
from rl_infonce.training.run_state import (
    MODEL,
    check_budget,
    check_tables,
    check_unsaved,
    keep_model,
)
from rl_infonce.training.session_record import SessionRecord, differing_losses


@contextlib.contextmanager
def started(
    given: Mapping[str, Any],
    run_dir: Path | None,
    callbacks: Sequence[BaseCallback] = (),
    *,
    complain: Callable[[str], object],
) -> Iterator[TrainingRun]:
    """Hold a run that begins or goes on, with its model; nothing is trained yet.

    A run that goes on has its own settings. Without a folder, a run takes the next free one of its
    game or environment in the log folder. The callbacks are called beside the run's own, and
    `complain` receives a line about what goes wrong.
    """
    with contextlib.ExitStack() as held:
        if run_dir is not None:  # nobody else changes its record from now on
            held.enter_context(hold_run(run_dir))
        record, plan = planned(given, run_dir, complain)
        pretrained = pretrained_file(plan, run_dir)
        model = make_model(plan, pretrained, record["arguments"]["n_timesteps"])
        check_updates(plan.loss, model)  # before a folder is claimed
        own = [*_planned_callbacks(plan), *callbacks]
        try:
            if plan.tensorboard_log is not None:  # before a run's folder is claimed in vain
                made_folder("--tensorboard-log", plan.tensorboard_log / plan.algo)
            if run_dir is None:
                logs = made_folder("--log-folder", plan.log_folder / plan.algo)
                run_dir = claim_run_directory(logs, plan.name)
                held.enter_context(hold_run(run_dir))
            tb_dir = curves_folder(plan, run_dir, record)
            if pretrained is not None and pretrained != run_dir / ENCODER:
                replace_bytes(run_dir / ENCODER, pretrained.read_bytes())
        except OSError as error:
            raise OSError(f"Cannot write the logs: {error}") from error
        yield TrainingRun(plan, record, run_dir, tb_dir, model, own, complain)


def pretrained_file(plan: TrainingPlan, run_dir: Path | None) -> Path | None:
    """Return the encoder to start from, or None: a run that goes on has its own copy.

    A file of that name in a run that was given no encoder is somebody else's.
    """
    if plan.pretrained is None or run_dir is None:
        return plan.pretrained
    own = run_dir / ENCODER
    return own if (run_dir / RECORD).exists() and own.exists() else plan.pretrained


def _planned_callbacks(plan: TrainingPlan) -> list[BaseCallback]:
    """Return what trains the loss beside the model: its decoupled updates, if they are planned."""
    decoupled = decoupled_callback(plan.loss)
    return [] if decoupled is None else [decoupled]


def check_updates(loss: Mapping[str, Any], model: BaseAlgorithm) -> None:
    """Raise a ValueError if a loss would train nothing, or is both isolated and decoupled."""
    unfit = unfit_for_attaching(model)
    for extractor in trained_extractors(model.policy):
        if loss.get("decoupled"):
            check_not_isolated(extractor)
        elif unfit and extractor.infonce_coef > 0 and not extractor.is_isolated:
            raise ValueError(
                f"Expected `isolated` or `decoupled`, as the loss would train nothing otherwise: "
                f"{unfit}. Pass --isolated or --decoupled (in a grid, `isolated = true`); "
                "--infonce-coef 0 trains the baseline."
            )


class TrainingRun:
    """A run directory that this process holds, and the model that trains in it.

    The model is untrained at first, the record is kept up to date, and `tb_dir` is for the curves.
    `model_file` is None once the model could not be written anywhere.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        record: dict[str, Any],
        run_dir: Path,
        tb_dir: Path,
        model: BaseAlgorithm,
        callbacks: Sequence[BaseCallback],
        complain: Callable[[str], object],
    ) -> None:
        self.plan, self.record, self.run_dir, self.tb_dir = plan, record, run_dir, tb_dir
        self.model = model
        self.model_file: Path | None = run_dir / MODEL
        self._callbacks, self._complain = callbacks, complain
        self._goes_on = (run_dir / RECORD).exists()
        self._session = SessionRecord(run_dir, record)
        save_freq = max(plan.save_freq // model.n_envs, 1)
        self._resume = ResumeCallback(run_dir / "checkpoints", save_freq)
        self._episodes = EpisodeLogCallback(run_dir / "episodes.csv")

    def open(self, *, inexact: bool, fall_back: bool, on_screen: bool) -> bool:
        """Restore the last checkpoint, open the logs, and return whether there was a checkpoint.

        An inexact run goes on with other versions of packages, or another loss where defaults have
        changed; one that may fall back takes the checkpoint before a damaged one. `on_screen` lets
        the logger print its tables.
        """
        try:
            is_restored = self._goes_on and self._resume.restore(
                self.model, inexact=inexact, fall_back=fall_back
            )
            if self._goes_on and not is_restored:
                check_unsaved(self.run_dir, self.record)
                keep_model(self.run_dir, self.record, self._complain)
            n_trained = self.model.num_timesteps
            check_budget(self.plan.n_timesteps, self.record, n_trained)
            if is_restored:
                check_tables(self.run_dir, n_trained)
                self._check_loss(inexact=inexact)
            self._episodes.open(n_trained)
            logger = run_logger(
                self.run_dir,
                self.tb_dir,
                first_step=n_trained,
                goes_on=self._goes_on,
                on_screen=on_screen,
            )
            self.model.set_logger(logger)
            self._session.begin(self.model, self.plan.n_timesteps, self._callbacks)
        except (ValueError, OSError):
            self._episodes.close()
            raise
        return bool(is_restored)

    def _check_loss(self, *, inexact: bool) -> None:
        """Raise if the loss is not the one of the checkpoint, unless the run may be inexact.

        What a run was not given has the default, which another version may have changed.
        """
        differing = differing_losses(self.record, self.model, self._callbacks)
        if differing and not inexact:
            raise ValueError(
                f"Expected the loss with which {self.run_dir} was trained, got other defaults: "
                f"{'; '.join(differing)}. Go on with the version of rl-infonce that trained it, or "
                "pass --resume-inexact."
            )
        self._resume.is_exact &= not differing

    def learn(self, *, progress: bool) -> int:
        """Train what is left, save whatever happens, and return the exit code.

        0: done. 1: numbers went bad, or something could not be saved. 75: stopped by a signal.
        130: stopped by Ctrl-C at once. Another exception is raised again after saving.
        """
        guard = NanGuardCallback(on_nan=self.plan.on_nan)
        callbacks = [*self._callbacks, self._episodes, guard, self._resume]
        status, code, start = "failed", 1, time.perf_counter()
        stops = stopping_signals(lambda _signal: self._resume.ask_to_stop())
        with contextlib.ExitStack() as held, stops:
            if progress:
                bar = progress_bar(self.model, self.plan.n_timesteps)
                callbacks.append(held.enter_context(bar))
            try:
                n_left = max(self.plan.n_timesteps - self.model.num_timesteps, 0)
                if n_left:
                    self.model.learn(n_left, callbacks, reset_num_timesteps=False)
                # The step at which a stop is noticed counts, and its update is missing.
                is_done = not self._resume.stopped
                status, code = ("done", 0) if is_done else ("interrupted", INTERRUPTED)
            except (FloatingPointError, NotSavedError) as error:
                self._complain(str(error))
            except KeyboardInterrupt:  # a second Ctrl-C, or one from inside a callback
                status, code = "interrupted", 130
            finally:
                self._episodes.close()
                is_in_place = self._finish(status, time.perf_counter() - start)
        return code if is_in_place else code or 1

    def _finish(self, status: str, seconds: float) -> bool:
        """Save the model first, then the record, then the last curves.

        Return whether the model lies in the run; without it the run is not done.
        """
        model = self.model
        self.model_file = save_model(model, self.run_dir / MODEL, self._complain)
        is_in_place = self.model_file == self.run_dir / MODEL
        if not is_in_place and status == "done":
            status = "interrupted"
        try:
            self._session.end(model.num_timesteps, status, seconds, self._resume.saved_step)
        except OSError as error:
            self._complain(f"run.json could not be updated: {error}")
        if status == "failed" and self.model_file is not None:
            self._complain(f"The run failed; what was trained is in {self.model_file}")
        if model.logger.name_to_value:  # SB3 writes an update's curves one rollout later
            model.dump_logs()
        model.logger.close()
        close_env(model.get_env())
        return is_in_place
