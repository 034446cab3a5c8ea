import contextlib
import math
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_infonce.device import has_fast_bf16
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    OBJECTIVES,
    Budget,
    EpisodeFrames,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    PretrainingSettings,
    Progress,
    hold_out_episodes,
    make_objective,
    pretrain,
)
from rl_infonce.pretraining import gradients as gradients_module
from rl_infonce.pretraining.checkpoint import write_checkpoint
from rl_infonce.pretraining.gradients import backward
from rl_infonce.pretraining.micro_batch import MicroBatch
from rl_infonce.pretraining.objectives import paints_screens
from rl_infonce.pretraining.ranks import Ranks
from rl_infonce.pretraining.trainer import CHECKPOINT
from tests.full_disk import full_disk
from tests.further import further, with_further

SETTINGS = PretrainingSettings(batch_size=4, precision="fp32", n_validation_frames=16, patience=99)

# Emulated, bf16 takes most of a minute; other tests train with it for a step or two.
PRECISIONS = ["fp32", "bf16"] if has_fast_bf16(torch.device("cpu")) else ["fp32"]


def build(name: str = "stdim", seed: int = 0) -> PretrainingObjective:
    variables = ("x",) if name == "supervised" else ()
    generator = torch.Generator().manual_seed(seed)
    if paints_screens(name):
        encoder: STDIMEncoder | PixelEncoder = STDIMEncoder(generator)
    else:
        encoder = PixelEncoder((1, 40, 40), 16, generator=generator)
    return make_objective(name, encoder, generator, variables=variables)


def all_frames(name: str = "stdim") -> EpisodeFrames:
    """Return noise of the size that the encoder of an objective reads."""
    rng, n_frames = np.random.default_rng(0), 240
    size = (210, 160) if paints_screens(name) else (40, 40)
    images = rng.integers(0, 256, (n_frames, 1, *size), dtype=np.uint8)
    labels = {"x": rng.integers(0, 4, n_frames)}
    return EpisodeFrames(images, np.arange(n_frames) // 24, np.arange(n_frames), labels)


def parts(frames: EpisodeFrames | None = None) -> tuple[EpisodeFrames, EpisodeFrames]:
    frames = frames or all_frames()
    train, held_out = hold_out_episodes(frames.episode_ids, np.random.default_rng(0))
    return replace(frames, rows=train), replace(frames, rows=held_out)


def weights(objective: PretrainingObjective) -> list[Tensor]:
    return [tensor.clone() for tensor in objective.encoder.state_dict().values()]


close = partial(torch.allclose, atol=2e-4)


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


def killed_at(step: int) -> Callable[[Progress], None]:
    def kill(progress: Progress) -> None:
        if progress.step == step:
            raise KilledError

    return kill


def without_times(progress: Progress) -> dict[str, Any]:
    found = asdict(progress)
    for each in [found, *found["history"]]:
        for key in [key for key in each if "second" in key]:
            del each[key]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["stdim", further("vae"), further("supervised")])
def test_a_resumed_run_equals_one_that_was_never_stopped(
    tmp_path: Path, name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.pretraining.trainer.N_VALIDATIONS", 4)
    settings, budget = replace(SETTINGS, precision=precision), Budget(n_steps=10)
    both, whole = parts(all_frames(name)), build(name)
    expected = pretrain(whole, *both, budget, settings)
    assert [each["step"] for each in expected.history] == [3, 6, 8, 10]
    kill = killed_at(7)  # between two checkpoints
    with pytest.raises(KilledError):
        pretrain(build(name), *both, budget, settings, folder=tmp_path, on_progress=kill)
    resumed = build(name, seed=1)  # its weights come from the file
    steps: list[int] = []
    note: Any = lambda progress: steps.append(progress.step)  # noqa: E731
    found = pretrain(resumed, *both, budget, settings, folder=tmp_path, on_progress=note)
    assert steps == [7, 8, 9, 10]
    assert all(map(torch.equal, weights(whole), weights(resumed)))
    assert without_times(found) == without_times(expected)
    again = build(name, seed=2)  # nothing is left to do
    assert pretrain(again, *both, budget, settings, folder=tmp_path).step == 10
    assert torch.equal(weights(again)[0], weights(whole)[0])


def test_the_best_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 4.0])
    evaluate = gradients_module.evaluate

    def as_told(*arguments: Any, **settings: Any) -> PretrainingLoss:
        return evaluate(*arguments, **settings)._replace(loss=torch.tensor(next(losses)))

    monkeypatch.setattr("rl_infonce.pretraining.trainer.evaluate", as_told)
    settings = replace(SETTINGS, learning_rate=1e-3, n_validation_frames=1)
    seen: list[list[Tensor]] = []
    objective = build()
    note: Any = lambda _: seen.append(weights(objective))  # noqa: E731
    progress = pretrain(objective, *parts(), Budget(n_steps=4), settings, on_progress=note)
    assert (progress.best_loss, progress.best_step, progress.n_stale) == (1.0, 2, 2)
    for kept, best, last in zip(weights(objective), seen[1], seen[3], strict=True):
        assert torch.equal(kept, best)
        assert not torch.equal(kept, last)


def small_frames(n_episodes: int, episode_length: int, *, alike: bool = False) -> EpisodeFrames:
    """Return chessboards of random grays, new in every frame or in every episode."""
    ids = np.repeat(np.arange(n_episodes), episode_length)
    boards = np.random.default_rng(0).integers(0, 256, (len(ids), 1, 5, 5), dtype=np.uint8)
    images = boards[ids if alike else slice(None)].repeat(8, axis=2).repeat(8, axis=3)
    return EpisodeFrames(images, ids, np.arange(len(ids)))


@pytest.mark.parametrize("alike", [True, False])
def test_the_loss_falls_where_there_is_something_to_learn(alike: bool) -> None:
    frames = small_frames(120, 2, alike=alike)
    settings = replace(SETTINGS, batch_size=8, learning_rate=1e-3, n_validation_frames=32)
    progress = pretrain(build(), *parts(frames), Budget(n_steps=40), settings)
    assert len(progress.history) == 40
    share_of_chance = progress.best_loss / (2 * math.log(8))  # two terms, 8 candidates
    assert share_of_chance < 0.6 if alike else share_of_chance > 0.95


def test_a_run_without_progress_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    _, progress = run(40, replace(SETTINGS, learning_rate=1e-12, patience=3, seed=1))
    assert progress.step < 40
    assert progress.n_stale == 3
    assert progress.step - progress.best_step == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        (50, range(0)),
        (50, range(20, 99)),
        (100, range(6)),
        (400, range(10)),
        (20, range(0)),
    ],
)
def test_a_budget_in_seconds_is_kept(
    monkeypatch: pytest.MonkeyPatch, seconds: int, slow: range
) -> None:
    now, step = 0.0, 0
    rates: list[float] = []

    def take(progress: Progress | None = None) -> None:
        nonlocal now, step
        now += 3 if step in slow else 1
        step += 1

    backward_of = gradients_module.backward

    def slowly(*arguments: Any, **settings: Any) -> PretrainingLoss:
        take()
        return backward_of(*arguments, **settings)

    monkeypatch.setattr("rl_infonce.pretraining.trainer.time.perf_counter", lambda: now)
    monkeypatch.setattr("rl_infonce.pretraining.trainer.backward", slowly)
    step_of = torch.optim.Adam.step

    def step_and_note(adam: torch.optim.Adam) -> None:
        rates.append(adam.param_groups[0]["lr"])
        step_of(adam)

    monkeypatch.setattr(torch.optim.Adam, "step", step_and_note)
    progress = run_small(None, Budget(seconds=seconds))
    assert 0.95 * seconds <= progress.seconds <= 1.1 * seconds
    steps = [entry["step"] for entry in progress.history]
    assert len(steps) >= min(40, 0.9 * progress.step, 0.2 * seconds) / 2
    assert max(np.diff([0, *steps])) <= 0.2 * progress.step
    peak = int(np.argmax(rates))
    assert rates[peak] == pytest.approx(SETTINGS.learning_rate, rel=0.1)
    assert peak <= 0.1 * len(rates)
    assert rates[-1] < 0.1 * SETTINGS.learning_rate
    assert progress.step == progress.n_steps
    assert progress.history[-1]["step"] == progress.step
    assert 1 <= len(progress.history) <= 40


@pytest.mark.parametrize(("n_frames", "n_steps"), [(1, 1), (16, 2), (17, 3)])
def test_a_budget_in_frames_is_spent_in_whole_batches(n_frames: int, n_steps: int) -> None:
    progress = pretrain(build(), *parts(), Budget(n_frames=n_frames), SETTINGS)  # 4 x 2 per step
    assert progress.step == n_steps


@pytest.mark.parametrize(
    ("budget", "error", "message"),
    [
        ({}, ValueError, "`budget` of steps, seconds or frames"),
        ({"n_steps": 2.5}, TypeError, r"`budget\.n_steps` to be an integer, got 2.5"),
        ({"n_frames": 2.5}, TypeError, r"`budget\.n_frames` to be an integer, got 2.5"),
        *(
            ({name: value}, ValueError, rf"`budget\.{name}` to be a finite number >=? .*{value}")
            for name in ("n_steps", "n_frames", "seconds")
            for value in (0, -1)
        ),
    ],
)
def test_budgets_that_end_no_run_or_at_once_are_refused(
    budget: dict[str, Any], error: type[Exception], message: str
) -> None:
    def end(progress: Progress) -> None:
        assert progress.step < 20, "a run that nothing ends"

    with pytest.raises(error, match=message):
        pretrain(build(), *parts(), Budget(**budget), SETTINGS, on_progress=end)


def test_a_part_that_is_too_short_is_named_before_the_start() -> None:
    train, held_out = parts()
    frames = replace(held_out, episode_ids=np.arange(240), rows=np.arange(3))
    with pytest.raises(ValueError, match=r"validation part is too short. .* at least 2 frames"):
        pretrain(build(), train, frames, Budget(n_steps=2), SETTINGS)
    few = replace(held_out, episode_ids=np.arange(240) // 4, rows=np.arange(4))
    with pytest.raises(ValueError, match=r"validation .* at least \d+ frames .* batch, got 3"):
        pretrain(build(), train, few, Budget(n_steps=2), SETTINGS)


def test_two_runs_of_a_folder_do_not_meet(tmp_path: Path) -> None:
    def start_another(_: Progress) -> None:
        with pytest.raises(OSError, match=r"alone, but process \d+ on .* trains in it"):
            run(2, folder=tmp_path)

    run(2, folder=tmp_path, on_progress=start_another)
    assert run(2, folder=tmp_path)[1].step == 2


def test_a_run_goes_on_with_fewer_samples_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run(3, folder=tmp_path, on_progress=killed_at(2))
    found, progress = run(3, replace(SETTINGS, micro_batch_size=2), tmp_path)
    assert progress.step == 3
    assert all(map(close, weights(found), weights(run(3)[0])))


def test_other_settings_do_not_continue_a_run(tmp_path: Path) -> None:
    run(2, folder=tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    for settings, message in (
        (replace(SETTINGS, seed=1), "seed=0 (not 1)"),
        (replace(SETTINGS, batch_size=6), "batch_size=4 (not 6)"),
        (
            replace(SETTINGS, precision="bf16"),
            "precision='fp32' (not 'bf16'). Pass --precision fp32 to go on",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            run(2, settings, tmp_path)
    with pytest.raises(ValueError, match=re.escape("game=None (not 'pong')")):
        run(2, SETTINGS, tmp_path, about={"game": "pong"})
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_other_frames_do_not_continue_a_run(tmp_path: Path) -> None:
    def run_on(frames: EpisodeFrames) -> None:
        pretrain(build(), *parts(frames), Budget(n_steps=2), SETTINGS, folder=tmp_path)

    frames = all_frames()
    run_on(frames)
    for other in (small_frames(10, 6), replace(frames, episode_ids=np.arange(240) // 12)):
        with pytest.raises(ValueError, match=r"frames_checksum=\d+ \(not \d+\).* another folder"):
            run_on(other)
    run_on(frames)


def test_a_checkpoint_that_does_not_know_its_frames_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_checksum(*arguments: Any) -> None:
        del arguments[-1]["frames_checksum"]
        write_checkpoint(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("rl_infonce.pretraining.trainer.write_checkpoint", without_checksum)
        with pytest.raises(KilledError):
            run(2, folder=tmp_path, on_progress=killed_at(1))
    assert run(2, folder=tmp_path)[1].step == 2


def run_small(folder: str | Path | None, budget: Budget, **more: Any) -> Progress:
    settings = more.pop("settings", SETTINGS)
    return pretrain(build(), *parts(small_frames(10, 6)), budget, settings, folder=folder, **more)


def test_a_checkpoint_is_written_every_minute_between_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def slowly(*arguments: Any, **settings: Any) -> PretrainingLoss:
        nonlocal now
        now += 40
        return gradients_module.backward(*arguments, **settings)

    monkeypatch.setattr("rl_infonce.pretraining.trainer.time.perf_counter", lambda: now)
    monkeypatch.setattr("rl_infonce.pretraining.trainer.backward", slowly)
    monkeypatch.setattr("rl_infonce.pretraining.trainer.has_time_to_validate", lambda *_: False)
    last = 0
    steps: list[int] = []

    def note(progress: Progress) -> None:
        nonlocal last
        file = tmp_path / CHECKPOINT
        if file.exists() and file.stat().st_ino != last:
            last = file.stat().st_ino
            steps.append(progress.step)
        if progress.step == 7:
            raise KilledError

    with pytest.raises(KilledError):
        run_small(tmp_path, Budget(seconds=3600), on_progress=note)
    assert steps == [2, 4, 6]
    steps.clear()
    with pytest.raises(KilledError):
        run_small(tmp_path, Budget(seconds=3600), on_progress=note)
    assert not steps  # it went on from step 6


def test_a_checkpoint_between_validations_does_not_change_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.pretraining.trainer.N_VALIDATIONS", 2)
    expected = run_small(None, Budget(n_steps=8))
    monkeypatch.setattr("rl_infonce.pretraining.trainer._SAVE_SECONDS", 0.0)
    for step in (2, 6):
        with pytest.raises(KilledError):
            run_small(tmp_path, Budget(n_steps=8), on_progress=killed_at(step))
    steps: list[int] = []
    found = run_small(tmp_path, Budget(n_steps=8), on_progress=lambda p: steps.append(p.step))
    assert steps == [7, 8]
    assert without_times(found) == without_times(expected)


def test_numbers_of_numpy_are_kept_in_a_checkpoint(tmp_path: Path) -> None:
    settings = replace(SETTINGS, batch_size=np.int64(4), learning_rate=np.float32(1e-3))
    for folder, budget in ((tmp_path, np.int64(2)), (str(tmp_path), 2)):
        assert run_small(folder, Budget(n_steps=budget), settings=settings).step == 2


def test_what_the_caller_tells_of_a_run_is_checked_before_it_and_found_again(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        run_small(tmp_path, Budget(n_steps=1), about={"shape": (4, 84), "sizes": {2: 1}})
    with pytest.raises(TypeError, match=r"`about` of values that JSON holds, got .*Path"):
        run_small(tmp_path, Budget(n_steps=1), about={"frames": tmp_path}, on_progress=pytest.fail)


def test_what_the_caller_names_like_a_setting_is_compared_too(tmp_path: Path) -> None:
    about = {"n_frames": 800}
    run(2, folder=tmp_path, about=about)
    assert run(2, folder=tmp_path, about=about)[1].step == 2
    with pytest.raises(ValueError, match=re.escape("about.n_frames=800 (not 900)")):
        run(2, folder=tmp_path, about={"n_frames": 900})


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_full_disk_is_named_and_the_checkpoint_before_kept(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        full = lambda _: stack.enter_context(full_disk())  # noqa: E731 (after the first step)
        with pytest.raises(OSError, match=CHECKPOINT):
            run(3, folder=tmp_path, on_progress=full)
    steps: list[int] = []
    run(3, folder=tmp_path, on_progress=lambda progress: steps.append(progress.step))
    assert steps == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loss", "gradient", "validation"])
def test_what_is_not_finite_stops_before_the_step_and_keeps_the_checkpoint(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective: Any = build()
    seen: list[list[Tensor]] = []

    def poison(progress: Progress) -> None:
        seen.append(weights(objective))
        if progress.step != 3:
            return
        if what == "loss":
            objective.from_map.weight.data.fill_(torch.nan)
        elif what == "gradient":
            objective.from_map.weight.register_hook(lambda gradient: gradient * torch.inf)
        else:
            patch = lambda *_, **__: PretrainingLoss(torch.tensor(torch.inf), torch.tensor(0.0))  # noqa: E731
            monkeypatch.setattr("rl_infonce.pretraining.trainer.evaluate", patch)

    message = {
        "loss": r"a loss of nan in step 3, whose first frames are rows \[",
        "gradient": r"Expected a finite gradient, got a loss of [\d.]+ in step 3",
        "validation": "Expected a finite validation loss, got inf after step 4",
    }[what]
    with pytest.raises(FloatingPointError, match=message):
        pretrain(
            objective, *parts(), Budget(n_steps=9), SETTINGS, folder=tmp_path, on_progress=poison
        )
    if what != "validation":
        assert all(map(torch.equal, weights(objective), seen[-1]))
    monkeypatch.undo()
    resumed = build(seed=1)
    assert pretrain(resumed, *parts(), Budget(n_steps=9), SETTINGS, folder=tmp_path).step == 9


def batch_of(objective: PretrainingObjective, frames: EpisodeFrames) -> FrameBatch:
    rows = objective.draw(frames, 6, np.random.default_rng(1))
    images = torch.as_tensor(frames.observations[rows])
    labels = {name: torch.as_tensor(values[rows[:, 0]]) for name, values in frames.labels.items()}
    return FrameBatch(images, labels)


def two_of(name: str) -> tuple[PretrainingObjective, PretrainingObjective, FrameBatch]:
    """Return an objective twice, and a batch; CPC, which looks at 100 frames, on long episodes."""
    frames = small_frames(2, 120) if name == "cpc" else all_frames(name)
    return build(name), build(name), batch_of(build(name), frames)


def gradients(objective: PretrainingObjective) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in objective.named_parameters()
        if parameter.grad is not None
    }


def of_whole_and_parts(
    name: str, *, half: bool, part: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of a batch as a whole and in parts, whose losses must be equal."""
    whole, in_parts, batch = two_of(name)
    loss = float(backward(whole, batch, half=half, part=6).loss)
    assert float(backward(in_parts, batch, half=half, part=part).loss) == pytest.approx(loss)
    expected, found = gradients(whole), gradients(in_parts)
    assert expected.keys() == found.keys()
    return expected, found


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("part", [further(1), 4])
def test_micro_batches_give_the_gradient_of_the_whole(name: str, part: int) -> None:
    expected, found = of_whole_and_parts(name, half=False, part=part)
    for key, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(found[key], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-7), key


@pytest.mark.parametrize("name", with_further(OBJECTIVES, {*OBJECTIVES} - {"stdim", "vae"}))
def test_micro_batches_give_the_gradient_in_bfloat16(name: str) -> None:
    expected, found = of_whole_and_parts(name, half=True, part=4)
    differences = [found[key] - gradient for key, gradient in expected.items()]
    size = torch.nn.utils.get_total_norm(expected.values())
    # bfloat16 has 8 bits; without it in hardware, a product is rounded more often
    tolerance = 5e-3 if has_fast_bf16(torch.device("cpu")) else 3e-2
    assert torch.nn.utils.get_total_norm(differences) < tolerance * size


OF_CUDA = torch.cuda.OutOfMemoryError()
OF_THE_CPU = RuntimeError(
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)


def fail_above(most: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let there be memory for so many samples at a time; return what is tried."""
    tried: list[int] = []

    def sometimes(objective: Any, batch: FrameBatch, *, half: bool, part: int) -> Any:
        tried.append(part)
        if part > most:
            raise error
        return backward(objective, batch, half=half, part=part)

    monkeypatch.setattr("rl_infonce.pretraining.trainer.backward", sometimes)
    return tried


@pytest.mark.parametrize("error", [OF_CUDA, OF_THE_CPU], ids=["cuda", "cpu"])
def test_memory_that_runs_out_halves_the_micro_batch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = fail_above(1, error, monkeypatch)
    found, _ = run(2)
    assert tried == [4, 2, 1, 1]
    fail_above(0, error, monkeypatch)
    with pytest.raises(MemoryError, match=r"encode 1 samples at a time.*smaller `batch_size`"):
        run(2)
    monkeypatch.undo()
    expected, _ = run(2)
    assert all(map(close, weights(found), weights(expected)))


def test_memory_of_a_failed_attempt_is_free_before_the_cache_is_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[Tensor]] = []
    kept: list[Tensor | None] = []

    def compute(*, part: int) -> PretrainingLoss:
        activations = torch.zeros(part)
        held.append(weakref.ref(activations))
        if part > 1:
            raise torch.cuda.OutOfMemoryError
        return PretrainingLoss(activations.sum(), activations.mean())

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.extend(ref() for ref in held))
    optimizer = torch.optim.SGD([torch.zeros(1)])
    MicroBatch(4, optimizer, is_alone=True).compute(compute)
    assert kept == [None] * 3  # one of the first attempt, two of the second


@pytest.mark.parametrize(("part", "way_out"), [(1, "batch_size"), (2, "micro_batch_size")])
def test_ranks_without_memory_are_told_a_way_out(
    monkeypatch: pytest.MonkeyPatch, part: int, way_out: str
) -> None:
    fail_above(0, OF_CUDA, monkeypatch)
    monkeypatch.setattr(Ranks, "here", lambda: Ranks(0, 2))
    monkeypatch.setattr("rl_infonce.pretraining.trainer.check_same_on_ranks", lambda *_: None)
    with pytest.raises(MemoryError, match=rf"encode {part} samples .*smaller `{way_out}`"):
        run(2, replace(SETTINGS, micro_batch_size=part))


def test_the_precision_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[bool] = []

    def note(*arguments: Any, half: bool, **settings: Any) -> PretrainingLoss:
        used.append(half)
        return backward(*arguments, half=half, **settings)

    monkeypatch.setattr("rl_infonce.pretraining.trainer.backward", note)
    for wanted in ("auto", "fp32", "bf16"):
        run(1, replace(SETTINGS, precision=wanted))
    assert used == [has_fast_bf16(torch.device("cpu")), False, True]


def test_images_that_are_no_uint8_are_refused() -> None:
    training, held_out = parts()
    images = training.observations.astype(np.float32) / 255
    with pytest.raises(TypeError, match=r"`observations` to be uint8 in 0..255, .* got float32"):
        pretrain(
            build(), replace(training, observations=images), held_out, Budget(n_steps=1), SETTINGS
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("batch_size", 1), ("micro_batch_size", 0), ("learning_rate", 0), ("seed", -1)),
        *(("precision", "fp16"), ("n_validation_frames", 0), ("patience", 0)),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        PretrainingSettings(**{name: value})


@pytest.mark.parametrize(
    "name", ["batch_size", "micro_batch_size", "n_validation_frames", "patience", "seed"]
)
@pytest.mark.parametrize("value", [2.5, 2.0, True])
def test_counts_are_integers(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"`{name}` to be an integer, got {value}"):
        PretrainingSettings(**{name: value})
