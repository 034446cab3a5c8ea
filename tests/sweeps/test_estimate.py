"""What all cells take, from one of each kind."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_infonce.networks.encoder_file import save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.sb3.own_adam import OwnAdam
from rl_infonce.sweeps import estimate
from rl_infonce.sweeps.grid import Cell, make_grid, read_grid
from tests.sweeps.grids import write_grid

BYTES = {"baseline": (40, 10), "infonce": (70, 20)}  # of checkpoints and models


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    return read_grid(write_grid(tmp_path / "grid.toml", seeds=[0, 1])).cells()


@pytest.mark.parametrize(("n_running", "expected"), [(1, 60 + 70), (2, 60 + 140), (4, 60 + 220)])
def test_the_largest_run_at_once(
    cells: list[Cell], monkeypatch: pytest.MonkeyPatch, n_running: int, expected: int
) -> None:
    monkeypatch.setattr(estimate, "disk_of", lambda cell, _: BYTES[cell.arm])
    assert estimate.disk_of_all(cells, 100, n_running) == expected
    assert estimate.disk_of_all([], 100, n_running) == 0


def test_one_of_each_arm_is_tried_with_the_threads_of_a_cell(
    cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, int]] = []

    def seconds_of(cell: Cell, _: int) -> float:
        tried.append((cell.arm, torch.get_num_threads()))
        return {"baseline": 1.0, "infonce": 2.0}[cell.arm]

    monkeypatch.setattr(estimate, "seconds_of", seconds_of)
    before = torch.get_num_threads()
    assert estimate.seconds_of_all(cells, 100, before + 1) == (6.0, 2, [])
    assert sorted(arm for arm, _ in tried) == ["baseline", "infonce"]
    assert {n_threads for _, n_threads in tried} == {before + 1}
    assert torch.get_num_threads() == before


def test_the_time_is_that_of_the_second_update_scaled_to_all_steps(
    cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Model:
        """Takes a minute for its first 64 steps, and 4 s for any 64 after them."""

        num_timesteps = 0

        def learn(self, n_steps: int, callback: Any, reset_num_timesteps: bool = True) -> None:
            assert self.num_timesteps == 0 or not reset_num_timesteps
            clock[0] += 4.0 if self.num_timesteps else 60.0
            self.num_timesteps += 64

        def get_env(self) -> "Model":
            return self

        def close(self) -> None:
            pass

    monkeypatch.setattr(estimate, "_model", lambda *_, **__: Model())
    monkeypatch.setattr("rl_infonce.sweeps.estimate.time.perf_counter", lambda: clock[0])
    assert estimate.seconds_of(cells[0], 6400) == 400.0


def test_the_room_is_that_of_the_disk_which_a_folder_will_be_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def disk_usage(path: Path) -> Any:
        asked.append(path)
        return SimpleNamespace(free=5)

    monkeypatch.setattr("rl_infonce.sweeps.estimate.shutil.disk_usage", disk_usage)
    assert estimate.free_bytes(tmp_path / "sweeps" / "none yet") == 5
    assert estimate.free_bytes(tmp_path) == 5
    assert asked == [tmp_path, tmp_path]


@pytest.mark.parametrize(
    "changes",
    [
        {"games": ["breakout"], "train": {"isolated": True, "n_envs": 1}},
        {"envs": ["Pendulum-v1"], "train": {"n_envs": 1}},  # vectors have isolated encoders
    ],
)
def test_decoupled_updates_of_isolated_encoders_are_refused_before_a_sweep_begins(
    changes: dict[str, Any],
) -> None:
    common = {"arms": ["infonce", "decoupled"], "seeds": [0], "n_timesteps": 64}
    with pytest.raises(ValueError, match=r"extractor that RL trains, got isolated=True") as refusal:
        estimate.disk_of_all(make_grid({**common, **changes}).cells(), 64, 1)
    assert "Arm 'decoupled' with ppo" in str(refusal.value)
    assert "Arm 'infonce'" not in str(refusal.value)


def test_a_broken_encoder_is_refused_before_a_sweep_begins(tmp_path: Path) -> None:
    path = tmp_path / "none.safetensors"
    path.write_text("no encoder")
    own = {"broken": {"pretrained": str(path)}}
    grid = write_grid(tmp_path / "grid.toml", arms=["baseline", "broken"], arm=own)
    with pytest.raises(ValueError, match=r"Arm 'broken' with ppo .*none\.safetensors") as refusal:
        estimate.disk_of_all(read_grid(grid).cells(), 128, 1)
    assert "'baseline'" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes", [{"games": ["breakout"]}, {"envs": ["Pendulum-v1"], "train": {"isolated": False}}]
)
def test_a_loss_that_would_train_nothing_is_refused_before_a_sweep_begins(
    changes: dict[str, Any],
) -> None:
    arms = ["baseline", "infonce", "decoupled"]
    grid = make_grid({"algos": ["trpo"], "arms": arms, "seeds": [0], "n_timesteps": 64, **changes})
    with pytest.raises(ValueError, match=r"the loss would train nothing otherwise: TRPO") as error:
        estimate.disk_of_all(grid.cells(), 64, 1)
    assert [arm for arm in arms if f"Arm '{arm}'" in str(error.value)] == ["infonce"]


def test_decoupled_updates_of_vectors_that_rl_encodes_also_may_begin() -> None:
    train = {"isolated": False, "n_envs": 1}
    content = {"envs": ["Pendulum-v1"], "arms": ["decoupled"], "n_timesteps": 64, "train": train}
    assert estimate.disk_of_all(make_grid(content).cells(), 64, 1) > 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_decoupled_arm_is_tried_with_its_own_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"decoupled": True, "decoupled_learning_rate": 0.5, "n_envs": 2}
    small = {"hyperparameters": {"n_steps": 16, "n_epochs": 1}, "n_pairs": 4}
    grid = write_grid(tmp_path / "grid.toml", arms=["mine"], arm={"mine": own | small})
    (cell,) = read_grid(grid).cells()
    rates: list[float] = []
    step = OwnAdam.step

    def noted(self: OwnAdam, parameters: Any, auxiliary: Any, learning_rate: float) -> None:
        rates.append(learning_rate)
        step(self, parameters, auxiliary, learning_rate)

    monkeypatch.setattr(OwnAdam, "step", noted)
    assert estimate.seconds_of(cell, 1000) > 0
    assert rates.count(0.5) == 2 * 16, "after each of two rollouts"


def test_what_is_tried_has_the_arms_encoder(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    generator = torch.Generator().manual_seed(0)
    save_encoder(PixelEncoder((4, 84, 84), 16, encoder="impala", generator=generator), path)
    settings = {"pretrained": str(path), "freeze_encoder": True}
    grid = write_grid(tmp_path / "grid.toml", arms=["own"], arm={"own": settings})
    (cell,) = read_grid(grid).cells()
    model = estimate._model(cell, 1000, device="cpu")
    model.get_env().close()
    extractor = model.policy.features_extractor
    assert (extractor.features_dim, extractor.settings.infonce_coef) == (16, 0.0)
    assert "Residual" in str(extractor.cnn)
    assert not any(each.requires_grad for each in extractor.cnn.parameters())
