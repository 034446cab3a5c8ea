"""What runs the cells of a sweep: this machine, Ray or Slurm, and how many cells at once."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from loky import cpu_count

from rl_infonce.checks import check_number
from rl_infonce.sweeps import local, on_ray, on_slurm
from rl_infonce.sweeps.run_cell import Job

CellCodes = Generator[tuple[str, int], None, None]
"""Names and exit codes of cells, each when it ends; closing it asks trainings to save and stop."""


@dataclass(frozen=True)
class Engine:
    """An engine ("local", "ray" or "slurm") and its settings.

    Without `n_jobs`, as many cells run at once on this machine as it has GPUs or, without any,
    processors. An address of None or "local" starts Ray here. Without `gpus_per_cell`, the cells at
    once share the GPUs of this machine, and take none on a cluster. `slurm` holds parameters of
    submitit's AutoExecutor, and `cluster` what it submits to, which is Slurm if it is None.
    """

    name: str = "local"
    n_jobs: int | None = None
    n_threads: int = 1
    address: str | None = None
    gpus_per_cell: float | None = None
    n_retries: int = 3
    slurm: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None

    def check(self) -> None:
        """Raise unless every setting is legal; the message names its flag."""
        if self.n_jobs is not None and self.is_far_ray:
            raise ValueError(
                "Expected --n-jobs with a Ray that starts here, got --address: the processors and "
                "GPUs of the cluster decide how many cells run at once. Leave --n-jobs out."
            )
        check_number("--n-threads", self.n_threads, at_least=1)
        if self.n_jobs is not None:
            check_number("--n-jobs", self.n_jobs, at_least=1)
        check_number("--retries", self.n_retries, at_least=0)
        if self.gpus_per_cell is not None:
            check_number("--gpus-per-cell", self.gpus_per_cell, at_least=0)
        if self.name == "slurm":
            on_slurm.check_parameters(self.slurm, self.cluster)

    def check_cluster(self) -> None:
        """Raise unless cells can be handed over to the cluster, if there is one."""
        if self.name == "ray":
            on_ray.check_address(self.address)
        if self.name == "slurm":
            on_slurm.check_slurm(self.cluster)

    @property
    def is_far_ray(self) -> bool:
        """Whether cells run on a Ray that is there already."""
        return self.name == "ray" and self.address not in (None, "local")

    def jobs_here(self) -> int:
        """Return how many cells this machine runs at once."""
        return self.n_jobs or usable_gpus() or max(cpu_count() // self.n_threads, 1)

    def jobs_at_once(self, n_cells: int) -> int:
        """Return how many cells run at once: on a cluster, which may be of any size, all."""
        on_cluster = self.name == "slurm" or self.is_far_ray
        return n_cells if on_cluster else min(self.jobs_here(), n_cells)

    def run(self, jobs: Sequence[Job], folder: Path) -> CellCodes:
        """Return a generator that runs jobs of the sweep in a folder, started in this order."""
        if self.name == "ray" and jobs:
            return on_ray.run_on_ray(
                jobs,
                address=self.address,
                n_jobs=None if self.is_far_ray else self.jobs_here(),
                n_cpus=self.n_threads,
                n_gpus=self._gpus_on_ray(),
                n_retries=self.n_retries,
            )
        if self.name == "slurm" and jobs:
            return on_slurm.run_on_slurm(
                jobs,
                folder=folder / "slurm",
                n_cpus=self.n_threads,
                parameters=self.slurm,
                cluster=self.cluster,
            )
        return local.run_locally(
            jobs, n_jobs=self.jobs_here(), n_gpus=usable_gpus(), n_threads=self.n_threads
        )

    def _gpus_on_ray(self) -> float:
        """Return how much of a GPU a cell takes: Ray hides all GPUs from a cell that takes none."""
        if self.gpus_per_cell is not None or self.is_far_ray:
            return float(self.gpus_per_cell or 0)
        return min(usable_gpus() / self.jobs_here(), 1)


def usable_gpus() -> int:
    """Return how many GPUs torch sees."""
    return torch.cuda.device_count()
