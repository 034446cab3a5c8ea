"""Does a long training with everything switched on keep its memory and its files?

PPO with InfoNCE on Pong, probes, evaluations and checkpoints, for a given time; once per rollout
the resident memory, what of it is in use and the open file handles are noted. Resident memory also
holds what was freed and not given back, which moves with what is allocated at once; a leak is in
use. Slopes are Theil-Sen's, over the second half, when caches are full.

    python experiments/soak.py --minutes 30 --output experiments/results/soak.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback

from rl_infonce import InfoNCEExtractor, ProbeCallback, ResumeCallback, make_atari_vec_env
from rl_infonce.resuming.nan_guard import NanGuardCallback
from rl_infonce.resuming.run_logs import run_logger
from rl_infonce.runs.software import software
from rl_infonce.training.rl_zoo import PPO_SIZES

GAME, N_ENVS, EVAL_FREQ, N_PROBE_FRAMES = "pong", 8, 1000, 5000
PAGE = os.sysconf("SC_PAGE_SIZE")


_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def bytes_in_use() -> int:
    """Return what the process has allocated and not freed; glibc 2.33 or newer alone knows."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


class Watch(BaseCallback):
    """Notes memory and file handles at every rollout, and ends the training in time.

    It also notes the steps of the checkpoints that `resume` has written.
    """

    def __init__(self, seconds: float, resume: ResumeCallback) -> None:
        super().__init__()
        self.seconds = seconds
        self.resume = resume
        self.saved: set[int] = set()
        self.notes: list[dict[str, float]] = []
        self.start = time.perf_counter()

    def _on_rollout_start(self) -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        self.notes.append(
            {
                "seconds": round(time.perf_counter() - self.start, 1),
                "step": self.num_timesteps,
                "resident_mb": round(resident / 1e6, 1),
                "in_use_mb": round(bytes_in_use() / 1e6, 1),
                "n_files": len(os.listdir("/proc/self/fd")),
            }
        )

    def _on_step(self) -> bool:
        if self.resume.saved_step is not None:
            self.saved.add(self.resume.saved_step)
        return time.perf_counter() - self.start < self.seconds


def soak(seconds: float, folder: Path) -> dict[str, Any]:
    """Train with everything on and return what was noted."""
    env = make_atari_vec_env(GAME, n_envs=N_ENVS, seed=0)
    model = PPO(
        "CnnPolicy",
        env,
        **PPO_SIZES,
        policy_kwargs={"features_extractor_class": InfoNCEExtractor, "net_arch": []},
        seed=0,
    )
    model.set_logger(
        run_logger(folder, folder / "tb", first_step=0, goes_on=False, on_screen=False)
    )
    resume = ResumeCallback(folder / "checkpoints", save_freq=128)
    watch = Watch(seconds, resume)
    probes = ProbeCallback(
        GAME, probe_freq=2000, n_frames=N_PROBE_FRAMES, cache_folder=folder / "cache"
    )
    evaluations = EvalCallback(
        make_atari_vec_env(GAME, n_envs=2, seed=1),
        eval_freq=EVAL_FREQ,
        n_eval_episodes=1,
        log_path=str(folder),
        verbose=0,
    )
    model.learn(10**9, callback=[probes, evaluations, NanGuardCallback(), watch, resume])
    model.logger.close()
    env.close()
    evaluations.eval_env.close()
    return {
        **software(),
        "n_checkpoints": len(watch.saved),
        "n_probes": len(probes.history),
        "n_evaluations": len(evaluations.evaluations_timesteps),
        "notes": watch.notes,
    }


def slope(notes: list[dict[str, float]], name: str) -> float:
    """Return Theil-Sen's slope per hour over the second half."""
    half = notes[len(notes) // 2 :]
    slopes = [(b[name] - a[name]) / (b["seconds"] - a["seconds"]) for a, b in combinations(half, 2)]
    return float(np.median(slopes)) * 3600


def memory(notes: list[dict[str, float]], name: str, words: str) -> dict[str, str]:
    """Return a kind of memory at half time, at the end, and its slope between."""
    return {
        f"{words} at half time, MB": f"{notes[len(notes) // 2][name]:.0f}",
        f"{words} at the end, MB": f"{notes[-1][name]:.0f}",
        f"slope of {words}, MB per hour": f"{slope(notes, name):+.1f}",
    }


def table(found: dict[str, Any]) -> str:
    """Return the counts and slopes as Markdown."""
    notes = found["notes"]
    rows = {
        "minutes": f"{notes[-1]['seconds'] / 60:.0f}",
        "agent steps": f"{notes[-1]['step']:,}",
        "checkpoints": found["n_checkpoints"],
        "probes": found["n_probes"],
        "evaluations": found["n_evaluations"],
        **memory(notes, "in_use_mb", "memory in use"),
        **memory(notes, "resident_mb", "resident memory"),
        "open files at half time": f"{notes[len(notes) // 2]['n_files']:.0f}",
        "open files at the end": f"{notes[-1]['n_files']:.0f}",
    }
    return "\n".join(["| what | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])


def main() -> None:
    """Soak, write what was noted and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = soak(60 * arguments.minutes, Path(folder))
    arguments.output.write_text(json.dumps(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
