"""Plan a training: its settings, what `run.json` notes about them, and what goes on."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rl_infonce.checks import check_choice
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.kinds import PATH, TEXT, Choice, Count, Flag, Texts, is_legal
from rl_infonce.presets import LOSS_SETTINGS
from rl_infonce.runs.checkpoints import checkpoints
from rl_infonce.runs.run_directory import RECORD, new_record, read_record
from rl_infonce.settings import InfoNCESettings, declared, defaults, setting
from rl_infonce.training.rl_zoo import N_ENVS

ENCODER = "encoder.safetensors"
"""File in a run's folder: the pretrained encoder with which the run began."""
# A run that goes on may change these: another machine has other devices and processors.
OF_A_SESSION = ("n_timesteps", "save_freq", "tensorboard_log", "device", "num_threads")
_PATHS = ("pretrained", "tensorboard_log")
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training of an agent on an Atari game or another environment.

    A run without a folder of its own gets one in the log folder. `loss` holds the settings of the
    loss that were given.
    """

    game: str | None = setting(None, TEXT, "Atari game, in any spelling.")
    env: str | None = setting(
        None, TEXT, "Gymnasium id of an environment, e.g. HalfCheetah-v5 or my_envs:Maze-v0."
    )
    seed: int | None = None
    freeze_encoder: bool = setting(
        False, Flag(), "Whether the weights of the encoder, pretrained or random, stay as they are."
    )
    algo: str = setting("ppo", Choice(tuple(N_ENVS)), "Algorithm.")
    hyperparams: list[str] | None = setting(
        None,
        Texts(),
        "Hyperparameters of the algorithm, e.g. n_epochs:6 learning_rate:lin_1e-4, as in RL Zoo.",
    )
    normalize: bool = setting(
        False,
        Flag(),
        "Whether vectors and rewards are normalised by running statistics (VecNormalize).",
    )
    n_timesteps: int = setting(30_000, Count(), "Agent steps to train.")
    n_envs: int | None = setting(None, Count(), "Games played at once (8; 1 with a replay buffer).")
    device: str = setting("auto", TEXT, "Device, e.g. auto, cpu, cuda or cuda:1.")
    pretrained: Path | None = setting(
        None, PATH, "File encoder.safetensors of a pretrained encoder to start from."
    )
    num_threads: int = setting(
        -1, Count(-math.inf), "Threads of torch on the CPU; torch chooses if it is not positive."
    )
    log_folder: Path = Path("logs")
    tensorboard_log: Path | None = setting(
        None, PATH, "Folder of the TensorBoard curves (in the folder of the run)."
    )
    save_freq: int = setting(25_000, Count(), "Agent steps between checkpoints.")
    on_nan: str = setting("stop", Choice(("stop", "skip")), "What to do when a gradient is NaN.")
    loss: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TrainingPlan:
        """Return a plan from flat settings; those that are not given have their defaults.

        Raises:
            TypeError: If there is no such setting.
            ValueError: If there is no such algorithm, or a game is to be normalised.
        """
        loss = {name: settings[name] for name in LOSS_SETTINGS if settings.get(name) is not None}
        own = {name: settings[name] for name in settings if name not in LOSS_SETTINGS}
        plan = cls(**own, loss=loss)
        check_choice("algo", plan.algo, N_ENVS)
        if plan.normalize and plan.game is not None:
            raise ValueError(
                "Expected `--normalize` with --env alone, got it with --game: rewards of Atari "
                "games are clipped and images are divided by 255 already. Leave it out."
            )
        return plan if plan.n_envs is not None else replace(plan, n_envs=N_ENVS[plan.algo])

    @property
    def task(self) -> str:
        """Game or environment."""
        return str(self.game or self.env)

    @property
    def name(self) -> str:
        """Game or environment as the run's folder is called."""
        return folder_name(self.task)

    def flat(self) -> dict[str, Any]:
        """Return all settings, those of the loss among them, None where they are not given."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "loss"}
        return {**own, **{name: self.loss.get(name) for name in LOSS_SETTINGS}}

    def arguments(self) -> dict[str, Any]:
        """Return all settings as `run.json` notes them."""
        return {name: _plain(value) for name, value in self.flat().items()}

    def of_extractor(self) -> dict[str, Any]:
        """Return the given arguments of `InfoNCEExtractor`."""
        names = {"preset", "encoder", *declared(InfoNCESettings)}
        return {name: value for name, value in self.loss.items() if name in names}


def folder_name(task: str) -> str:
    """Return a game or an environment's id as folders are called.

    Example:
        >>> folder_name("shimmy:dm_control/cheetah-run-v0"), folder_name("ms_pacman")
        ('dm_control-cheetah-run-v0', 'ms_pacman')
    """
    return re.sub(r"[^A-Za-z0-9._-]", "-", task.rpartition(":")[2])


def new_run(settings: Mapping[str, Any]) -> tuple[Record, TrainingPlan]:
    """Return the record of a run that begins, and its plan, with a seed."""
    plan = TrainingPlan.of(settings)
    if (plan.game is None) == (plan.env is None):
        got = "neither" if plan.game is None else "both"
        raise ValueError(
            f"Expected `--env` or `--game`, or `--resume` with the folder of a run, got {got}."
        )
    seed = secrets.randbelow(2**31) if plan.seed is None else plan.seed
    return new_record(plan.arguments(), seed), replace(plan, seed=seed)


def planned(
    given: Mapping[str, Any], run_dir: Path | None, say: Callable[[str], object]
) -> tuple[Record, TrainingPlan]:
    """Return the record of a run, and the plan with which it starts or goes on.

    This process holds the run's folder, which is None if it is still to be claimed. `say` receives
    a line about a setting that is not taken over.
    """
    if run_dir is None or not (run_dir / RECORD).exists():
        if run_dir is not None:
            check_unused(run_dir, given.get("pretrained"))
        return new_run(given)
    record = read_record(run_dir)
    former = _recorded(record, run_dir / RECORD)
    _check_given(given, former | _defaults_of(record), run_dir)
    session = {name: given[name] for name in OF_A_SESSION if name in given}
    if "tensorboard_log" not in session:
        session["tensorboard_log"] = _curves(former["tensorboard_log"], run_dir, say)
    return record, TrainingPlan.of({**former, "n_timesteps": budget_of(record), **session})


def budget_of(record: Mapping[str, Any]) -> int:
    """Return the agent steps of a whole run: those it was given last."""
    budgets = [session["n_timesteps"] for session in record["sessions"] if "n_timesteps" in session]
    return int([record["arguments"]["n_timesteps"], *budgets][-1])


def check_unused(run_dir: Path, pretrained: Path | None) -> None:
    """Raise if a folder without a record holds what a run would overwrite or go on from."""
    found = [run_dir / "model.zip"] if (run_dir / "model.zip").exists() else []
    found += checkpoints(run_dir / "checkpoints")
    tables = [run_dir / name for name in ("progress.csv", "episodes.csv")]
    # A run killed before it wrote its record leaves tables without rows, and its encoder.
    found += [path for path in tables if path.is_file() and len(path.read_bytes().split()) > 1]
    copy = run_dir / ENCODER
    if pretrained is not None and copy.exists() and copy.read_bytes() != pretrained.read_bytes():
        found.append(copy)
    if found:
        raise ValueError(
            f"Expected `--run-dir` {run_dir} to be new or to hold a run, got {found[0]} without "
            "run.json. Choose another folder."
        )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _recorded(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings of a record, which may be anyone's; what it lacks has its default."""
    found: dict[str, Any] = {}
    usual = defaults(TrainingPlan)
    for name, each in {**declared(TrainingPlan), **LOSS_SETTINGS}.items():
        default = usual.get(name)
        value = record["arguments"].get(name, default)
        if value is not default and not is_legal(each.kind, value):
            raise ValueError(f"Expected `{name}` in {path} to be {each.kind.words}, got {value!r}.")
        found[name] = Path(value) if name in _PATHS and value is not None else value
    has_task = (found["game"] is None) != (found["env"] is None)
    if not has_task or "n_timesteps" not in record["arguments"]:
        raise ValueError(
            f"Expected `game` or `env`, and `n_timesteps`, in the arguments of {path}, got none."
        )
    return {**found, "seed": record["seed"], "n_envs": found["n_envs"] or N_ENVS[found["algo"]]}


def _defaults_of(record: Record) -> dict[str, Any]:
    """Return the loss's own values where a run was given none; to repeat them is no change."""
    loss = record["sessions"][-1].get("loss", {}) if record["sessions"] else {}
    given = record["arguments"]
    return {name: loss[name] for name in LOSS_SETTINGS.keys() & loss if given.get(name) is None}


def _check_given(given: Mapping[str, Any], former: Mapping[str, Any], run_dir: Path) -> None:
    """Raise unless what is given is what a run has, but for what a session may change."""
    differing = [
        f"{name} is {_plain(given[name])!r} (was {_plain(former[name])!r})"
        for name in sorted(given)
        if name not in OF_A_SESSION and not _are_equal(name, given[name], former[name], run_dir)
    ]
    if differing:
        raise ValueError(
            f"Expected `--run-dir` {run_dir} with the settings it has, got: {'; '.join(differing)}."
        )


def _are_equal(name: str, given: Any, former: Any, run_dir: Path) -> bool:
    if name == "pretrained" and given is not None and former is not None:
        # the file may have moved, and the run has its own copy
        return bool(given == former) or _hold_the_same(given, run_dir / ENCODER)
    if name != "hyperparams":
        return bool(given == former)
    # the order does not matter, and 1 is 1.0
    return parse_hyperparameters(given or ()) == parse_hyperparameters(former or ())


def _hold_the_same(given: Path, own: Path) -> bool:
    return given.is_file() and own.is_file() and given.read_bytes() == own.read_bytes()


def _curves(folder: Path | None, run_dir: Path, say: Callable[[str], object]) -> Path | None:
    """Return the recorded folder of curves if it is the run's own: a record may be anyone's."""
    if folder is None or folder.resolve().is_relative_to(run_dir.resolve()):
        return folder
    say(
        f"TensorBoard's curves go to {run_dir / 'tb'} and not to {folder}, outside of the run. "
        "Give --tensorboard-log again to go on there."
    )
    return None
