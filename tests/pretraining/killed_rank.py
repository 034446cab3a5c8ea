"""A rank under torchrun; the second kills itself in its first life, for test_distributed.py.

python -m torch.distributed.run ... -m tests.pretraining.killed_rank FOLDER [--die-after STEPS]
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from rl_infonce.pretraining import Budget, Progress, pretrain
from rl_infonce.pretraining.ranks import Ranks, process_group
from tests.pretraining.failing_rank import SETTINGS, frames, objective


def main() -> None:
    """Train ten steps with four checkpoints, and leave the names of the threads then left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-after", type=int)
    arguments = parser.parse_args()
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    screens, trained = frames(40, (1, 210, 160)), objective("vae")
    validations = patch("rl_infonce.pretraining.trainer.N_VALIDATIONS", 4)
    with validations, process_group(torch.device("cpu")):
        rank = Ranks.here().rank

        def note(progress: Progress) -> None:
            if rank == 0:
                with (arguments.folder / f"steps-{life}.txt").open("a") as file:
                    file.write(f"{progress.step}\n")
            elif life == 0 and progress.step == arguments.die_after:
                os.kill(os.getpid(), signal.SIGKILL)

        told: dict[str, Any] = {"folder": arguments.folder, "on_progress": note}
        pretrain(trained, screens, screens, Budget(n_steps=10), SETTINGS, **told)
    if sys.platform == "linux":
        left = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        (arguments.folder / f"threads-{rank}.txt").write_text("".join(left))


if __name__ == "__main__":
    main()
