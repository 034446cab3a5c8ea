"""A cell's commands mean to the command line what its settings say."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rl_infonce import InfoNCEExtractor
from rl_infonce.cli import make_parser
from rl_infonce.hyperparameters import parse_hyperparameters
from rl_infonce.presets import preset_settings
from rl_infonce.settings import InfoNCESettings, declared
from rl_infonce.sweeps.arms import ARMS
from rl_infonce.sweeps.commands import probe_command, train_command
from rl_infonce.sweeps.grid import GridError, make_grid
from tests.sweeps.grids import GRID


def test_settings_become_flags() -> None:
    hyperparameters = {"n_epochs": 3, "learning_rate": "lin_1e-4", "target_kl": 0.5}
    train = {"horizons": [4, 8], "hyperparameters": hyperparameters, "device": "cpu"}
    grid = make_grid({**GRID, "algos": ["ppo"], "arms": list(ARMS), "train": train, "seeds": [5]})
    for cell in grid.cells():
        words = train_command(cell, grid, Path("cells") / cell.name)
        parsed = make_parser().parse_args(words)
        assert (parsed.game, parsed.algo, parsed.seed) == ("breakout", "ppo", 5)
        assert (parsed.n_timesteps, parsed.run_dir) == (128, Path("cells") / cell.name)
        assert (parsed.horizons, parsed.device, parsed.progress) == ([4, 8], "cpu", False)
        expected = cell.settings["hyperparameters"]
        assert parse_hyperparameters(parsed.hyperparams) == expected
        for name in ("infonce_coef", "preset", "positives"):
            assert getattr(parsed, name) == cell.settings.get(name), name
        assert bool(parsed.decoupled) == (cell.arm == "decoupled")
        assert bool(parsed.augment_observations) == ("augment_observations" in cell.settings)
        assert parsed.freeze_encoder == ("freeze_encoder" in cell.settings)


def test_everything_that_the_loss_can_be_told_is_a_setting_and_a_flag() -> None:
    train = {
        **{"preset": "atc", "encoder": "impala", "infonce_coef": 0.5, "horizons": [5]},
        **{"n_pairs": 8, "min_gap": 2},
        **{"critic": "cosine", "temperature": 0.2},
        **{"terms": ["global", "local_local"], "centred": False},
        **{"context": "gru", "context_length": 3},
        **{"action_conditioning": True, "augmentation": "none", "target_encoder_tau": 0.5},
        **{"positives": "shuffled", "precision": "bf16"},
        **{"augment_observations": True, "objective": "infonce", "predictor": "mlp"},
        **{"isolated": True, "encoder_learning_rate": 0.01, "encoder_updates": 3},
        **{"input_sparsity": 0.1},
        **{"policy_encoder_tau": 0.25, "align_features": True, "with_observation": False},
        **{"select_inputs": True, "pairs_from": "buffer"},
        **{"activation": "elu", "normalization": "layer", "feature_activation": "simplicial"},
    }
    unused_by_isolation = {"max_grad_ratio", "infonce_interval"}
    own = declared(InfoNCESettings)
    settings = {"preset", "encoder", *own} - unused_by_isolation
    assert train.keys() == settings, "Give each setting of the loss a legal value here."
    (cell,) = make_grid({**GRID, "arms": ["infonce"], "train": train}).cells()
    parsed = make_parser().parse_args(train_command(cell, make_grid(GRID), Path("run")))
    given = {name: getattr(parsed, name) for name in train}
    assert given == train
    actions = spaces.Discrete(3)
    images = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    # Three of these are for vectors, and the other is for an encoder that RL trains.
    of_images = given | {"input_sparsity": 0.0, "select_inputs": False, "with_observation": None}
    of_images |= {"augment_observations": False}
    extractor = InfoNCEExtractor(images, action_space=actions, auto_bind=False, **of_images)
    expected = {name: of_images[name] for name in own if name in train}
    assert extractor.settings == preset_settings("cpc", expected | {"with_observation": True})
    own_updates = {"decoupled": True, "decoupled_learning_rate": 0.25}
    (cell,) = make_grid({**GRID, "arms": ["infonce"], "train": own_updates}).cells()
    parsed = make_parser().parse_args(train_command(cell, make_grid(GRID), Path("run")))
    assert {name: getattr(parsed, name) for name in own_updates} == own_updates
    with pytest.raises(GridError, match="no `max_grad_ratio` with decoupled updates"):
        make_grid({**GRID, "train": {**own_updates, "max_grad_ratio": 0.75}})
    with pytest.raises(GridError, match="`pairs_from` 'buffer' with decoupled updates"):
        make_grid({**GRID, "train": {**own_updates, "pairs_from": "minibatch"}})
    with pytest.raises(GridError, match="`infonce_interval` 1 with decoupled updates, got 4"):
        make_grid({**GRID, "train": {**own_updates, "infonce_interval": 4}})


def test_the_probe_reads_what_was_trained() -> None:
    probe = {"n_frames": 900, "protocol": ["converged", "knn"], "seeds": [0, 1]}
    grid = make_grid({**GRID, "probe": probe, "train": {"device": "cpu"}})
    (cell, _) = grid.cells()
    parsed = make_parser().parse_args(probe_command(cell, grid, Path("run")))
    assert parsed.features_of == [str(Path("run") / "model.zip")]
    assert (parsed.output, parsed.n_frames) == (Path("run/probe"), 900)
    assert (parsed.protocol, parsed.seeds) == (["converged", "knn"], [0, 1])
    assert parsed.device == "cpu", "where the cell was trained"


def test_a_relative_encoder_is_one_of_the_folder_where_the_sweep_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = make_grid({**GRID, "train": {"pretrained": "some/encoder.safetensors"}})
    (cell, _) = grid.cells()
    parsed = make_parser().parse_args(train_command(cell, grid, Path("run")))
    assert parsed.pretrained == tmp_path / "some" / "encoder.safetensors"
    assert not parsed.resume_inexact
    words = train_command(cell, grid, Path("run"), inexact=True)
    assert make_parser().parse_args(words).resume_inexact
