"""`rl-infonce train` that notes the step it has reached in a file, for `kills.py`.

python experiments/counted_training.py FILE train --game pong ...
"""

from __future__ import annotations

import sys
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from rl_infonce.cli import make_parser


class Counter(BaseCallback):
    """Writes the number of steps where a killed process leaves it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("wb", buffering=0)

    def _on_step(self) -> bool:
        self.file.seek(0)
        self.file.write(b"%012d" % self.num_timesteps)
        return True


if __name__ == "__main__":
    arguments = make_parser().parse_args(sys.argv[2:])
    raise SystemExit(arguments.run(arguments, Counter(Path(sys.argv[1]))))
