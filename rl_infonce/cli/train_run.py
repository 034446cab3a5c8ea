"""A training of `rl-infonce train` in its run directory, from the logs to what is printed last."""

from __future__ import annotations

import argparse
import io
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import shows_progress
from rl_infonce.cli.train_arguments import budget_of, counterpart
from rl_infonce.files.durable import replace_bytes
from rl_infonce.runs.run_directory import now, software, write_record
from rl_infonce.runs.signals import INTERRUPTED, stopping_signals
from rl_infonce.settings import noted

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback


class TrainRun:
    """A run directory that this process holds.

    Args:
        run_dir: Where `run.json`, checkpoints and the model lie.
        tb_dir: Of the curves.
        record: What `run.json` says, or will say.
    """

    def __init__(self, run_dir: Path, tb_dir: Path, record: dict[str, Any]) -> None:
        self.run_dir, self.tb_dir, self.record = run_dir, tb_dir, record
        self.goes_on = (run_dir / "run.json").exists()
        self.model_file = run_dir / "model.zip"

    def train(
        self, model: BaseAlgorithm, arguments: argparse.Namespace, own: Sequence[BaseCallback]
    ) -> int:
        """Train what is left, save whatever happens, and return the exit code."""
        from rl_infonce.resuming.episode_log import EpisodeLogCallback
        from rl_infonce.resuming.nan_guard import NanGuardCallback
        from rl_infonce.resuming.resume_callback import ResumeCallback

        self.callbacks = own
        self.resume = ResumeCallback(
            self.run_dir / "checkpoints", max(arguments.save_freq // model.n_envs, 1)
        )
        guard = NanGuardCallback(self.run_dir, on_nan=arguments.on_nan)
        self.episodes = EpisodeLogCallback(self.run_dir / "episodes.csv")
        try:
            if self.goes_on and self._is_finished(arguments):
                return 0
            is_restored = self.goes_on and self.resume.restore(
                model, inexact=arguments.resume_inexact, fall_back=arguments.fall_back
            )
            if self.goes_on and not is_restored:
                self._check_unsaved()
            self._check_budget(arguments, model.num_timesteps)
            self._open_logs(model, arguments)
            session = self._begin(model, arguments)
        except (ValueError, OSError) as error:
            self.episodes.close()
            print(f"rl-infonce train: {error}", file=sys.stderr)
            return 1
        words = f"Resuming at step {model.num_timesteps}" if is_restored else "Training"
        print(
            f"{words}: {arguments.algo.upper()} on {arguments.game} (seed {self.record['seed']}, "
            f"{model.device}) in {self.run_dir}"
        )
        callbacks = [*own, self.episodes, guard, self.resume]
        code = self._learn(model, arguments, callbacks, session)
        self._print_ending(model, arguments)
        return code

    def _is_finished(self, arguments: argparse.Namespace) -> bool:
        """Return whether nothing is left: a model written again is another file to probes."""
        n_done, budget = self.record.get("n_timesteps_done", 0), arguments.n_timesteps
        is_done = self.record.get("status") == "done"
        if is_done and n_done >= budget and self.model_file.is_file():
            print(f"Nothing left: {n_done} of {budget} steps are trained.")
            self._print_models()
            return True
        return False

    def _check_unsaved(self) -> None:
        """Raise unless a run without checkpoints never had one, and may begin anew.

        Raises:
            ValueError: If it had some, which are gone.
        """
        n_done, is_done = (
            self.record.get("n_timesteps_done", 0),
            self.record.get("status") == "done",
        )
        had_checkpoints = any(
            session.get("first_step") or session.get("saved_step")
            for session in self.record["sessions"]
        )
        if is_done or had_checkpoints:
            raise ValueError(
                f"Expected a checkpoint in {self.run_dir / 'checkpoints'} to go on from, got none "
                f"of a run that trained {n_done} steps (a sweep removes those of finished cells "
                "without --keep-checkpoints). Start another run with -n and another --run-dir."
            )

    def _check_budget(self, arguments: argparse.Namespace, n_trained: int) -> None:
        """Raise if a budget below what is trained would take the place of a larger one.

        Raises:
            ValueError: If so.
        """
        if arguments.n_timesteps < min(n_trained, budget_of(self.record)):
            raise ValueError(
                f"Expected `-n` above the {n_trained} steps that are trained, got "
                f"{arguments.n_timesteps}. Leave it out to go on to {budget_of(self.record)}."
            )

    def _open_logs(self, model: BaseAlgorithm, arguments: argparse.Namespace) -> None:
        from rl_infonce.resuming.run_logs import run_logger

        self.episodes.open(model.num_timesteps)
        logger = run_logger(
            self.run_dir,
            self.tb_dir,
            first_step=model.num_timesteps,
            goes_on=self.goes_on,
            on_screen=not shows_progress(arguments, sys.stdout),
        )
        model.set_logger(logger)

    def _begin(self, model: BaseAlgorithm, arguments: argparse.Namespace) -> dict[str, Any]:
        from rl_infonce.device import hardware_name

        session = {
            "start_time": now(),
            "first_step": model.num_timesteps,
            "n_timesteps": arguments.n_timesteps,
            "process": os.getpid(),
            "host": platform.node(),
            "hardware": hardware_name(model.device),
            # with the defaults, which another version may change
            "loss": _loss_of(model, self.callbacks),
            **software(),
        }
        self.record["sessions"].append(session)
        self.record.update(status="running", device=str(model.device))
        write_record(self.run_dir, self.record)
        return session

    def _learn(
        self,
        model: BaseAlgorithm,
        arguments: argparse.Namespace,
        callbacks: list[BaseCallback],
        session: dict[str, Any],
    ) -> int:
        from rl_infonce.resuming.resume_callback import NotSavedError

        progress = shows_progress(arguments, sys.stdout)
        status, code, start = "failed", 1, time.perf_counter()
        with stopping_signals(lambda _signal: self.resume.ask_to_stop()):
            try:
                n_left = max(arguments.n_timesteps - model.num_timesteps, 0)
                if n_left:
                    model.learn(n_left, callbacks, reset_num_timesteps=False, progress_bar=progress)
                # The step at which a stop is noticed counts, and its update is missing.
                is_done = not self.resume.stopped
                status, code = ("done", 0) if is_done else ("interrupted", INTERRUPTED)
            except (FloatingPointError, NotSavedError) as error:
                print(f"rl-infonce train: {error}", file=sys.stderr)
            except KeyboardInterrupt:  # a second Ctrl-C, or one from inside a callback
                status, code = "interrupted", 130
            finally:
                self.record["status"] = status
                self.episodes.close()
                is_in_place = self._finish(model, session, time.perf_counter() - start)
        return code if is_in_place else code or 1

    def _finish(self, model: BaseAlgorithm, session: dict[str, Any], seconds: float) -> bool:
        """Save the model first, then the record, then the last curves.

        Returns whether the model lies in the run; without it the run is not done.
        """
        is_in_place = self._save(model)
        if not is_in_place and self.record["status"] == "done":
            self.record["status"] = "interrupted"
        n_steps = model.num_timesteps - session["first_step"]
        session.update(
            end_time=now(),
            wall_seconds=round(seconds, 3),
            last_step=model.num_timesteps,
            saved_step=self.resume.saved_step,
        )
        self.record.update(
            end_time=now(),
            wall_seconds=round(sum(s.get("wall_seconds", 0.0) for s in self.record["sessions"]), 3),
            n_timesteps_done=model.num_timesteps,
            steps_per_second=round(n_steps / seconds, 1),
        )
        try:
            write_record(self.run_dir, self.record)
        except OSError as error:
            print(f"rl-infonce train: run.json could not be updated: {error}", file=sys.stderr)
        if self.record["status"] == "failed":
            print(f"The run failed; what was trained is in {self.model_file}", file=sys.stderr)
        if model.logger.name_to_value:  # SB3 writes an update's curves one rollout later
            model.logger.dump(model.num_timesteps)
        model.logger.close()
        model.get_env().close()  # type: ignore[union-attr]
        return is_in_place

    def _save(self, model: BaseAlgorithm) -> bool:
        file = io.BytesIO()
        model.save(file)
        try:
            replace_bytes(self.model_file, file.getvalue())
            return True
        except OSError as error:
            elsewhere = Path(tempfile.mkdtemp(prefix="rl_infonce_")) / self.model_file.name
            print(
                f"rl-infonce train: {self.model_file} could not be written: {error}. Trying "
                f"{elsewhere} instead.",
                file=sys.stderr,
            )
            self.model_file = elsewhere
            replace_bytes(elsewhere, file.getvalue())
            return False

    def _print_models(self) -> None:
        from rl_infonce.resuming.best_model import find_best

        print(f"Model:  {self.model_file}")
        if (best := find_best(self.run_dir / "checkpoints")) is not None:
            print(f"Best:   {best.path} (step {best.step}, mean return {best.mean_return:.1f})")

    def _print_ending(self, model: BaseAlgorithm, arguments: argparse.Namespace) -> None:
        record, run_dir, tb_dir = self.record, self.run_dir, self.tb_dir
        n_sessions = len(record["sessions"])
        alone = f" in the last of {n_sessions} sessions" if n_sessions > 1 else ""
        print(
            f"{record['status'].capitalize()}: {model.num_timesteps} steps in "
            f"{record['wall_seconds']:.0f} s ({record['steps_per_second']:.0f} steps/s{alone})"
        )
        print(_verdict(model), end="")
        self._print_models()
        print(f"Curves: {tb_dir}\nNext:")
        if record["status"] == "interrupted":
            print(f"  rl-infonce train --resume {shlex.quote(str(run_dir))}")
        logs = tb_dir.parent if tb_dir.name != "tb" else run_dir.parent
        print(f"  tensorboard --logdir {shlex.quote(str(logs))}")
        print("  " + counterpart(arguments, record["seed"]))


def _loss_of(model: BaseAlgorithm, callbacks: Sequence[BaseCallback]) -> dict[str, Any]:
    from rl_infonce.sb3.callbacks import InfoNCECallback, trained_extractors

    (extractor,) = trained_extractors(model.policy)
    of_updates = {
        f"decoupled_{name}": getattr(each, name)
        for each in callbacks
        if isinstance(each, InfoNCECallback) and each.decoupled
        for name in ("learning_rate", "n_updates", "max_grad_norm")
    }
    return {
        **noted(extractor.settings, extractor.horizons),
        **of_updates,
    }


def _verdict(model: BaseAlgorithm) -> str:
    """Return the last update's loss and accuracy beside what they must beat, or "" without any."""
    from rl_infonce.sb3.callbacks import trained_extractors

    (extractor,) = trained_extractors(model.policy)
    numbers = extractor.last_infonce
    horizon = f"k{extractor.horizons[0]}"
    n_terms = len(extractor.settings.terms)  # of which the loss is the sum
    if f"floor_pixels_{horizon}" not in numbers:  # the loss was off, or found no pairs
        return ""
    return (
        f"InfoNCE: loss {numbers['loss']:.2f} nats, chance {n_terms * numbers['mi_ceiling']:.2f}; "
        f"{numbers[f'accuracy_{horizon}']:.0%} of futures found, raw pixels "
        f"{numbers[f'floor_pixels_{horizon}']:.0%}, random encoder "
        f"{numbers[f'floor_random_{horizon}']:.0%}\n"
    )
