"""A training that notes the step it has reached in a file, for `kills.py`.

python experiments/counted_training.py FILE RUN '{"game": "pong", ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.training.run_state import is_finished
from rl_infonce.training.training_run import started


class Counter(BaseCallback):
    """Writes the number of steps where a killed process leaves it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("wb", buffering=0)

    def _on_step(self) -> bool:
        self.file.seek(0)
        self.file.write(b"%012d" % self.num_timesteps)
        return True


def main() -> int:
    """Begin the run in a folder with these settings, or go on with it."""
    reached, run_dir = map(Path, sys.argv[1:3])
    run_dir.mkdir(parents=True, exist_ok=True)
    with started(
        json.loads(sys.argv[3]),
        run_dir,
        [Counter(reached)],
        complain=lambda line: print(line, file=sys.stderr),
    ) as training:
        if is_finished(run_dir, training.record, training.plan.n_timesteps):
            return 0
        training.open(inexact=False, fall_back=False, on_screen=False)
        return training.learn(progress=False)


if __name__ == "__main__":
    raise SystemExit(main())
