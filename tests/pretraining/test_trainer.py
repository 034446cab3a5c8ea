from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from rl_infonce.encoders import STDIMEncoder
from rl_infonce.pretraining import (
    Budget,
    EpisodeFrames,
    FrameBatch,
    PretrainingObjective,
    PretrainingSettings,
    Progress,
    hold_out_episodes,
    make_objective,
    pretrain,
)
from rl_infonce.pretraining.gradients import average_over_ranks_, backward
from rl_infonce.pretraining.trainer import CHECKPOINT

SETTINGS = PretrainingSettings(batch_size=4, precision="fp32", n_validation_samples=8, patience=99)


def build(name: str = "stdim", seed: int = 0) -> PretrainingObjective:
    variables = ("x",) if name == "supervised" else ()
    generator = torch.Generator().manual_seed(seed)
    return make_objective(name, STDIMEncoder(generator), generator, variables=variables)


def all_frames(n_frames: int = 240) -> EpisodeFrames:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_frames, 1, 210, 160), dtype=np.uint8)
    labels = {"x": rng.integers(0, 4, n_frames)}
    return EpisodeFrames(images, np.arange(n_frames) // 24, np.arange(n_frames), labels)


def parts() -> tuple[EpisodeFrames, EpisodeFrames]:
    frames = all_frames()
    train, held_out = hold_out_episodes(frames.episode_ids, np.random.default_rng(0))
    return replace(frames, rows=train), replace(frames, rows=held_out)


def weights(objective: PretrainingObjective) -> list[Tensor]:
    return [tensor.clone() for tensor in objective.encoder.state_dict().values()]


def run(
    n_steps: int, settings: PretrainingSettings = SETTINGS, folder: Path | None = None, **more: Any
) -> tuple[PretrainingObjective, Progress]:
    objective = build()
    progress = pretrain(
        objective, *parts(), Budget(n_steps=n_steps), settings, folder=folder, **more
    )
    return objective, progress


class KilledError(Exception):
    pass


@pytest.mark.parametrize("name", ["stdim", "vae", "supervised"])
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path, name: str) -> None:
    def kill(progress: Progress) -> None:
        if progress.step == 4:
            raise KilledError

    whole = build(name)
    expected = pretrain(whole, *parts(), Budget(n_steps=8), SETTINGS)
    with pytest.raises(KilledError):
        pretrain(
            build(name), *parts(), Budget(n_steps=8), SETTINGS, folder=tmp_path, on_progress=kill
        )
    resumed = build(name, seed=1)  # its weights come from the file
    found = pretrain(resumed, *parts(), Budget(n_steps=8), SETTINGS, folder=tmp_path)
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(a, b)
    timeless = [{k: v for k, v in each.items() if "second" not in k} for each in expected.history]
    assert repr(timeless) == repr(
        [{k: v for k, v in each.items() if "second" not in k} for each in found.history]
    )
    again = build(name, seed=2)  # nothing is left to do
    assert pretrain(again, *parts(), Budget(n_steps=8), SETTINGS, folder=tmp_path).step == 8
    assert torch.equal(weights(again)[0], weights(whole)[0])


def test_the_loss_falls_and_the_best_weights_are_kept() -> None:
    settings = replace(SETTINGS, learning_rate=1e-3)
    objective, progress = run(40, settings)
    losses = [each["validation_loss"] for each in progress.history]
    assert len(losses) == 40
    assert [each["step"] for each in progress.history] == list(range(1, 41))
    assert progress.best_loss == min(losses) < losses[0]
    assert progress.best_step == 1 + int(np.argmin(losses))
    short = build()
    pretrain(short, *parts(), Budget(n_steps=40), settings, on_progress=None)
    assert torch.equal(weights(short)[0], weights(objective)[0])
    assert not torch.equal(weights(build())[0], weights(objective)[0])


def test_a_run_without_progress_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    _, progress = run(40, replace(SETTINGS, learning_rate=1e-12, patience=3, seed=1))
    assert progress.step < 40
    assert progress.n_stale == 3
    assert progress.step - progress.best_step == 3


def test_a_budget_in_seconds_becomes_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0  # read once per step, and once more per validation
        return now

    monkeypatch.setattr("rl_infonce.pretraining.trainer.time.perf_counter", clock)
    objective = build()
    progress = pretrain(objective, *parts(), Budget(seconds=100), SETTINGS)
    # 15 timed steps of a second; 40 validations of 2 batches take a third of a step each
    assert progress.n_steps == 15 + 85 - 26 - 1
    assert progress.step == progress.n_steps


def test_other_settings_do_not_continue_a_run(tmp_path: Path) -> None:
    run(2, folder=tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    for settings, message in (
        (replace(SETTINGS, seed=1), "seed=0 (not 1)"),
        (replace(SETTINGS, batch_size=6), "batch_size=4 (not 6)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            run(2, settings, tmp_path)
    with pytest.raises(ValueError, match=re.escape("game=None (not 'pong')")):
        run(2, SETTINGS, tmp_path, about={"game": "pong"})
    assert (tmp_path / CHECKPOINT).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"nothing", b'\x08\0\0\0\0\0\0\0{"a":{}}'])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(ValueError, match=CHECKPOINT):
        run(2, folder=tmp_path)


def test_a_loss_that_is_not_finite_stops_before_the_step(tmp_path: Path) -> None:
    objective: Any = build()
    seen: list[list[Tensor]] = []

    def poison(progress: Progress) -> None:
        seen.append(weights(objective))
        if progress.step == 3:
            objective.from_map.weight.data.fill_(torch.nan)

    with pytest.raises(
        FloatingPointError, match=r"got nan. It is that of step 3, whose .* rows \["
    ):
        pretrain(
            objective, *parts(), Budget(n_steps=9), SETTINGS, folder=tmp_path, on_progress=poison
        )
    for a, b in zip(weights(objective), seen[-1], strict=True):
        assert torch.equal(a, b)
    resumed = build(seed=1)
    pretrain(resumed, *parts(), Budget(n_steps=9), SETTINGS, folder=tmp_path)


def batch_of(objective: PretrainingObjective, n_samples: int = 6) -> FrameBatch:
    frames = all_frames()
    rows = objective.draw(frames, n_samples, np.random.default_rng(1))
    images = torch.as_tensor(frames.observations[rows])
    return FrameBatch(images, {"x": torch.as_tensor(frames.labels["x"][rows[:, 0]])})


def gradients(objective: PretrainingObjective) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in objective.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("name", ["stdim", "infonce", "jsd_stdim", "vae", "supervised"])
@pytest.mark.parametrize("part", [1, 4])
def test_micro_batches_give_the_gradient_of_the_whole(name: str, part: int) -> None:
    whole, in_parts = build(name), build(name)
    batch = batch_of(whole)
    loss = backward(whole, batch, half=False, part=6).loss
    assert float(backward(in_parts, batch, half=False, part=part).loss) == pytest.approx(
        float(loss)
    )
    expected, found = gradients(whole), gradients(in_parts)
    assert expected.keys() == found.keys()
    for key, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(found[key], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-7), key


def test_memory_that_runs_out_halves_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def sometimes(objective: Any, batch: FrameBatch, *, half: bool, part: int) -> Any:
        tried.append(part)
        if part > 1:
            raise torch.cuda.OutOfMemoryError
        return backward(objective, batch, half=half, part=part)

    monkeypatch.setattr("rl_infonce.pretraining.trainer.backward", sometimes)
    found, _ = run(2)
    assert tried == [4, 2, 1, 1]
    monkeypatch.undo()
    expected, _ = run(2)
    for a, b in zip(weights(found), weights(expected), strict=True):
        assert torch.allclose(a, b, atol=2e-4)


def test_two_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spawn(_rank_gradients, (tmp_path,), nprocs=2)  # type: ignore[no-untyped-call]
    for name in ("stdim", "infonce", "supervised"):
        objective = build(name)
        backward(objective, batch_of(objective), half=False, part=6)
        first, second = (torch.load(tmp_path / f"{name}-{rank}.pt") for rank in (0, 1))
        for key, gradient in gradients(objective).items():
            scale = float(gradient.abs().max())
            assert torch.allclose(first[key], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-7), key
            assert torch.equal(first[key], second[key])


def _rank_gradients(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for name in ("stdim", "infonce", "supervised"):
        objective = build(name)
        whole = batch_of(objective)
        own = slice(3 * rank, 3 * rank + 3)
        labels = {key: values[own] for key, values in whole.labels.items()}
        backward(objective, FrameBatch(whole.images[own], labels), half=False, part=3)
        average_over_ranks_(objective)
        torch.save(gradients(objective), folder / f"{name}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1}, "batch_size"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"precision": "fp16"}, "precision"),
        ({"n_validation_samples": 1}, "n_validation_samples"),
        ({"patience": 0}, "patience"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_out_of_range_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"`{message}`"):
        PretrainingSettings(**change)
