"""A small grid for tests of sweeps, and a folder where its sweep has begun."""

from pathlib import Path
from typing import Any

from rl_infonce.sweeps.grid import read_grid
from rl_infonce.sweeps.sweep_folder import SweepFolder

GRID: dict[str, Any] = {
    "games": ["breakout"],
    "arms": ["baseline", "infonce"],
    "seeds": [0],
    "n_timesteps": 128,
    "train": {"n_envs": 1, "n_pairs": 8, "save_freq": 64, "hyperparameters": {"n_steps": 64}},
}


def write_grid(path: Path, **changes: Any) -> Path:
    """Write the small grid, with changes, as TOML."""
    lines: list[str] = []
    tables: list[tuple[str, dict[str, Any]]] = []
    for name, value in (GRID | changes).items():
        if isinstance(value, dict):
            tables.append((name, value))
        else:
            lines.append(f"{name} = {_toml(value)}")
    for name, table in tables:
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def begun_sweep(folder: Path, **changes: Any) -> SweepFolder:
    """Return the folder of a sweep of the small grid, with changes, in its first session."""
    begun, path = SweepFolder(folder), write_grid(folder.with_suffix(".toml"), **changes)
    with begun.held():
        begun.adopt(read_grid(path), path.read_bytes())
    begun.begin_session("local", f"rl-infonce sweep {path.name}")
    return begun


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return repr(value)
