"""Cells of a sweep that nothing had to train."""

from pathlib import Path
from typing import Any

from rl_infonce.runs.run_directory import new_record, write_record
from rl_infonce.scoring.scores_file import ProbeKey, ScoresFile
from rl_infonce.sweeps.sweep_folder import SweepFolder
from tests.attacks.formats import SCORES_SETTINGS


def finished(folder: SweepFolder, index: int, *, f1: float = 0.5, **scores: Any) -> Path:
    """Write what a finished cell holds, and return its folder."""
    cell = folder.grid().cells()[index]
    run_dir = folder.run_dir(cell)
    run_dir.mkdir(parents=True)
    record = new_record({"game": cell.game}, cell.seed)
    ended = {"status": "done", "n_timesteps_done": 130, "wall_seconds": 3.5, "device": "cpu"}
    session = {"first_step": 0, "last_step": 130, "wall_seconds": 3.5}
    write_record(run_dir, {**record, **ended, "sessions": [session]})
    (run_dir / "episodes.csv").write_text(
        "step,length,return\n40,40,1.0\n40,38,2.5\n100,60,3.0\n129,20,9.0\n"
    )
    (run_dir / "progress.csv").write_text(
        "step,infonce/grad_ratio,infonce/mi_lower_bound,train/name\n64,,1.5,x\n128,0.5,2.0,x\n"
    )
    file = ScoresFile(run_dir / "probe", SCORES_SETTINGS)
    figures = {"f1_weighted": 0.5, "f1_macro": 0.25, "accuracy": 0.5}
    for key, kind, mean in (("m", "file", f1), ("r", "random", 0.25)):
        file.replace_encoder(key, {"name": key, "kind": kind, "description": ""})
        found = {
            **{"mean": {**figures, "f1_weighted": mean}, "intervals": {"mean": [0.1, 0.9]}},
            **{"categories": {"agent_localization": figures}, "variables": {}, "not_probed": {}},
        }
        about = {"labels_hash": "a", "frames_hash": "b", **scores}
        cell_of_probe = ProbeKey(cell.game, key, cell.seed, "converged")
        file.put(cell_of_probe, status="done", scores=found, **about)
        others = {**found, "mean": {**figures, "f1_weighted": 0.9}}  # of a seed not asked for
        file.put(cell_of_probe._replace(seed=99), status="done", scores=others, **about)
    return run_dir
