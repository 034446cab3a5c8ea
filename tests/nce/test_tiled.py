import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_infonce.nce import contrast
from rl_infonce.nce.contrast import CROSSOVER
from rl_infonce.temporal import negative_mask
from tests import oracles
from tests.draws import normal, random_mask

pytestmark = pytest.mark.filterwarnings("ignore:.*rows have no negative")  # random masks
SYMMETRIC = pytest.mark.parametrize("symmetric", [False, True])
Gradients = tuple[Tensor, ...]
mask_of = partial(random_mask, share=0.3, seed=5)


def embeddings(n_rows: int, seed: int, dim: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(n_rows, dim, seed=seed).to(dtype)


def losses_and_gradients(
    anchors: Tensor, candidates: Tensor, scale: float = 1.5, **keywords: Any
) -> tuple[Tensor, Gradients]:
    """Losses, and gradients of a random weighting of them by anchors, candidates and scale."""
    anchors, candidates = anchors.clone().requires_grad_(), candidates.clone().requires_grad_()
    factor = torch.tensor(scale, dtype=torch.promote_types(anchors.dtype, torch.float32))
    factor.requires_grad_()
    losses = contrast(anchors, candidates, scale=factor, **keywords)
    upstream = embeddings(len(losses), 9, 1)[:, 0].to(losses.dtype)
    return losses.detach(), torch.autograd.grad(losses, [anchors, candidates, factor], upstream)


def assert_tiled_equals_dense(
    anchors: Tensor, candidates: Tensor, tile: int, tolerance: float = 1e-10, **keywords: Any
) -> None:
    """Compare with all scores at once in float64; gradients relative to the largest embedding."""
    losses, gradients = losses_and_gradients(anchors, candidates, tile=tile, **keywords)
    expected, dense = losses_and_gradients(
        anchors.double(), candidates.double(), tile=None, **keywords
    )
    torch.testing.assert_close(losses.double(), expected, rtol=tolerance, atol=tolerance)
    size = max(1.0, float(anchors.abs().max()), float(candidates.abs().max()))
    for gradient, of_dense in zip(gradients, dense, strict=True):
        torch.testing.assert_close(
            gradient.double(), of_dense, rtol=tolerance, atol=tolerance * size
        )


@pytest.mark.parametrize(("symmetric", "n_more"), [(True, 0), (False, 0), (False, 2)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("tile", [None, 3])
def test_contrast_equals_loop_oracle(
    symmetric: bool, n_more: int, masked: bool, normalize: bool, tile: int | None
) -> None:
    anchors, candidates = embeddings(7, 0), embeddings(7 + n_more, 1)
    mask = mask_of(7, 7 + n_more) if masked else None
    rows, columns = anchors.tolist(), candidates.tolist()
    if normalize:
        rows, columns = [oracles.unit(v) for v in rows], [oracles.unit(v) for v in columns]
    scores = [[1.5 * score for score in row] for row in oracles.dot_products(rows, columns)]
    oracle = oracles.symmetric_info_nce if symmetric else oracles.info_nce
    expected = oracle(scores, None if mask is None else mask.tolist())
    settings: dict[str, Any] = {"symmetric": symmetric, "normalize": normalize, "tile": tile}
    losses = contrast(anchors, candidates, scale=1.5, mask=mask, **settings)
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)


@SYMMETRIC
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 127, 1000])
def test_tiled_equals_dense_for_any_size(n_rows: int, masked: bool, symmetric: bool) -> None:
    anchors, candidates = embeddings(n_rows, 0), embeddings(n_rows, 1)
    mask = mask_of(n_rows, n_rows) if masked else None
    assert_tiled_equals_dense(anchors, candidates, 64, symmetric=symmetric, mask=mask)


@SYMMETRIC
@pytest.mark.parametrize("tile", [1, 2, 5, 6, 12, 13, 14, 100])
def test_tiled_equals_dense_for_any_tile(tile: int, symmetric: bool) -> None:
    anchors, candidates, mask = embeddings(13, 0, 1), embeddings(13, 1, 1), mask_of(13, 13)
    before = mask.clone()
    assert_tiled_equals_dense(anchors, candidates, tile, symmetric=symmetric, mask=mask)
    assert torch.equal(mask, before)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_tiled_takes_more_candidates_than_anchors(normalize: bool, masked: bool) -> None:
    mask = mask_of(5, 17) if masked else None
    assert_tiled_equals_dense(
        embeddings(5, 0), embeddings(17, 1), 4, normalize=normalize, mask=mask
    )


@SYMMETRIC
def test_tiled_broadcasts_a_mask_of_candidates(symmetric: bool) -> None:
    mask = torch.ones(1, 6, dtype=torch.bool)
    assert_tiled_equals_dense(embeddings(6, 0), embeddings(6, 1), 4, symmetric=symmetric, mask=mask)


@SYMMETRIC
@pytest.mark.parametrize("tile", [None, 4])
@pytest.mark.parametrize("min_gap", [0, 1, 3, 1000])
@pytest.mark.parametrize("extra_mask", [False, True])
def test_contrast_episodes_and_times_equal_negative_mask(
    extra_mask: bool, min_gap: int, tile: int | None, symmetric: bool
) -> None:
    rng = np.random.default_rng(0)
    episodes, times = rng.integers(-2, 2, 15) * 2**40, rng.integers(-9, 9, 15)
    mask = torch.from_numpy(negative_mask(times, np.zeros(15, np.int64), episodes, min_gap))
    given = mask_of(15, 15) if extra_mask else None
    anchors, candidates = embeddings(15, 0), embeddings(15, 1)
    losses, gradients = losses_and_gradients(
        anchors,
        candidates,
        episodes=torch.from_numpy(episodes),
        times=torch.from_numpy(times),
        min_gap=min_gap,
        mask=given,
        tile=tile,
        symmetric=symmetric,
    )
    expected, dense = losses_and_gradients(
        anchors,
        candidates,
        mask=mask if given is None else mask & given,
        tile=None,
        symmetric=symmetric,
    )
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, dense, rtol=1e-10, atol=1e-10)


def test_contrast_times_may_need_64_bits() -> None:
    times, episodes = torch.tensor([0, 1, 2**40, 2**40 + 1]), torch.zeros(4, dtype=torch.long)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[[0, 1, 2, 3], [1, 0, 3, 2]] = False
    anchors, candidates = embeddings(4, 0), embeddings(4, 1)
    losses = contrast(anchors, candidates, episodes=episodes, times=times, min_gap=2, tile=3)
    torch.testing.assert_close(losses, contrast(anchors, candidates, mask=mask, tile=None))


@pytest.mark.parametrize("tile", [None, 4])
@pytest.mark.parametrize("offset", [1, 5, 8])
def test_contrast_offset_moves_the_positives(offset: int, tile: int | None) -> None:
    anchors, candidates, mask = embeddings(5, 0), embeddings(13, 1), mask_of(5, 13)
    episodes, times = torch.arange(13) // 4, torch.arange(13)
    keywords: dict[str, Any] = {"min_gap": 2, "tile": tile}
    losses, gradients = losses_and_gradients(
        anchors,
        candidates.roll(offset, 0),
        offset=offset,
        mask=mask.roll(offset, 1),
        episodes=episodes.roll(offset),
        times=times.roll(offset),
        **keywords,
    )
    expected, unmoved = losses_and_gradients(
        anchors, candidates, mask=mask, episodes=episodes, times=times, **keywords
    )
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradients[0], unmoved[0])
    torch.testing.assert_close(gradients[1].roll(-offset, 0), unmoved[1])


@SYMMETRIC
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("tile", "spread"), [(None, 1.0), (2, 1.0), (2, 100.0)])
def test_contrast_passes_gradcheck_with_mask_and_learnable_scale(
    tile: int | None, spread: float, normalize: bool, symmetric: bool
) -> None:
    """The wide spread of scores takes exponentials for rows and columns apart."""
    settings: dict[str, Any] = {"symmetric": symmetric, "normalize": normalize, "tile": tile}

    def losses(anchors: Tensor, candidates: Tensor, log_scale: Tensor) -> Tensor:
        scale = log_scale.exp()
        return contrast(anchors, candidates * weights, scale=scale, mask=mask_of(5, 5), **settings)

    weights = torch.linspace(1.0, spread, 5, dtype=torch.float64)[:, None]
    log_scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    inputs = (embeddings(5, 0).requires_grad_(), embeddings(5, 1).requires_grad_(), log_scale)
    assert torch.autograd.gradcheck(losses, inputs)


@SYMMETRIC
@pytest.mark.parametrize("needed", [0, 1, 2])
def test_tiled_gives_one_gradient_without_the_others(needed: int, symmetric: bool) -> None:
    keywords: dict[str, Any] = {"symmetric": symmetric}
    inputs = [embeddings(6, 0), embeddings(6, 1), torch.tensor(1.5, dtype=torch.float64)]
    gradients: list[Tensor] = []
    for tile in (4, None):
        wanted = inputs[needed].clone().requires_grad_()
        given = [*inputs[:needed], wanted, *inputs[needed + 1 :]]
        losses = contrast(given[0], given[1], scale=given[2], tile=tile, **keywords)
        gradients.extend(torch.autograd.grad(losses.square().sum(), wanted))
    torch.testing.assert_close(gradients[0], gradients[1])


def saved_bytes(n_rows: int, **keywords: Any) -> int:
    """Bytes of all distinct memory that autograd keeps for the backward pass."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    anchors, candidates = (
        embeddings(n_rows, seed, 8, torch.float32).requires_grad_() for seed in (0, 1)
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = contrast(anchors, candidates, normalize=True, **keywords)
    assert losses.requires_grad
    return sum(storages.values())


@SYMMETRIC
@pytest.mark.parametrize("timed", [False, True])
def test_tiled_saves_memory_linear_in_the_batch(timed: bool, symmetric: bool) -> None:
    def saved(n_rows: int) -> int:
        moments = torch.arange(n_rows)
        times: dict[str, Any] = {"episodes": moments // 9, "times": moments} if timed else {}
        return saved_bytes(n_rows, tile=32, symmetric=symmetric, **times)

    assert saved(512) < 2.2 * saved(256)
    assert saved(512) < 512 * 8 * 4 * 10  # ten times one side of embeddings
    assert saved_bytes(512, tile=None) > 512 * 512 * 4


@SYMMETRIC
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_tiled_extreme_scores_stay_exact(size: float, symmetric: bool) -> None:
    """Scores are plus and minus `size`; some candidates tie with the positive, some beat it."""
    signs = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0])
    anchors, candidates = torch.ones(5, 1), size * signs[:, None]
    losses, gradients = losses_and_gradients(
        anchors, candidates, scale=1.0, symmetric=symmetric, tile=2
    )
    over_row = torch.where(signs > 0, math.log(3), 2 * size + math.log(3))
    over_column = torch.full((5,), math.log(5))
    expected = (over_row + over_column) / 2 if symmetric else over_row
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0.0)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert_tiled_equals_dense(anchors, candidates, 2, tolerance=1e-5, symmetric=symmetric)


@SYMMETRIC
@pytest.mark.parametrize(
    ("anchors", "candidates", "tolerance"),
    [
        # one anchor scores thousands lower than the other: one shared exponential would be 0
        ([[4096, 0], [-4096, 1], [0, 1], [0, -1]], [[1, 0.5], [1, 1], [1, 1], [1, 0]], 1e-6),
        # log sums 150 apart: in the backward pass, as in the forward pass, rows need their own
        ([[75], [-75], [0], [1]], [[1], [1], [1], [1.5]], 1e-5),
    ],
)
def test_tiled_separates_rows_and_columns_of_different_range(
    anchors: Any, candidates: Any, tolerance: float, symmetric: bool
) -> None:
    sides = torch.tensor(anchors).float(), torch.tensor(candidates).float()
    for tile in (1, 2, 3, 4):
        assert_tiled_equals_dense(*sides, tile, tolerance, symmetric=symmetric)


@SYMMETRIC
def test_tiled_takes_half_precision_near_its_largest_number(symmetric: bool) -> None:
    anchors = torch.full((5, 1), 6e4, dtype=torch.float16)
    candidates = torch.tensor([[6e4], [-6e4], [6e4], [6e4], [-6e4]], dtype=torch.float16)
    assert_tiled_equals_dense(anchors, candidates, 2, 1e-6, scale=1e-6, symmetric=symmetric)


@SYMMETRIC
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiled_accumulates_half_precision_in_float32(dtype: torch.dtype, symmetric: bool) -> None:
    """Many small tiles leave only the rounding of the inputs' own format."""
    anchors, candidates = embeddings(48, 0, 4, dtype), embeddings(48, 1, 4, dtype)
    keywords: dict[str, Any] = {"tile": 2, "symmetric": symmetric}
    losses, gradients = losses_and_gradients(anchors, candidates, **keywords)
    expected, single = losses_and_gradients(anchors.float(), candidates.float(), **keywords)
    assert torch.equal(losses, expected)
    assert [gradient.dtype for gradient in gradients] == [dtype, dtype, torch.float32]
    for gradient, in_float32 in zip(gradients, single, strict=True):
        assert torch.equal(gradient, in_float32.to(gradient.dtype))


@SYMMETRIC
def test_tiled_ignores_autocast_in_both_passes(symmetric: bool) -> None:
    inputs = embeddings(9, 0, 4, torch.float32), embeddings(9, 1, 4, torch.float32)
    keywords: dict[str, Any] = {"tile": 4, "symmetric": symmetric, "normalize": True}
    expected = losses_and_gradients(*inputs, scale=20.0, **keywords)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = losses_and_gradients(*inputs, scale=20.0, **keywords)
    torch.testing.assert_close(inside, expected, rtol=0.0, atol=0.0)


def test_tiled_positive_that_wins_by_far_costs_nothing() -> None:
    """A positive rounded otherwise than its tile would leave a loss near 1e-3 of either sign."""
    anchors = 40 * embeddings(40, 0, 33, torch.float32)
    for symmetric in (False, True):
        losses = contrast(anchors, anchors, symmetric=symmetric, tile=16)
        torch.testing.assert_close(losses, torch.zeros(40), rtol=0.0, atol=1e-6)


@SYMMETRIC
def test_contrast_auto_tiles_large_batches_only(
    symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CROSSOVER, "symmetric" if symmetric else "one way", 64)
    names = []
    for n_rows in (63, 64):
        anchors = embeddings(n_rows, 0).requires_grad_()
        losses = contrast(anchors, embeddings(n_rows, 1), symmetric=symmetric)
        assert losses.grad_fn is not None
        names.append(losses.grad_fn.name())
    assert ["Tiled" in name for name in names] == [False, True]


def test_tiled_refuses_a_second_derivative() -> None:
    anchors = embeddings(4, 0).requires_grad_()
    losses = contrast(anchors, embeddings(4, 1), tile=2)
    with pytest.raises(RuntimeError, match=r"got `create_graph=True`\. Pass tile=None"):
        torch.autograd.grad(losses.sum(), anchors, create_graph=True)


def test_tiled_notices_a_mask_changed_before_the_backward_pass() -> None:
    anchors, mask = embeddings(4, 0).requires_grad_(), mask_of(4, 4)
    losses = contrast(anchors, embeddings(4, 1), mask=mask, tile=2)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(losses.sum(), anchors)


@SYMMETRIC
def test_tiled_refuses_a_mask_without_a_positive(symmetric: bool) -> None:
    mask = ~torch.eye(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="got 3 of 3 rows without it"):
        contrast(torch.zeros(3, 2), torch.zeros(3, 2), symmetric=symmetric, mask=mask, tile=2)


@SYMMETRIC
def test_scores_that_round_by_more_than_an_exponential_holds_have_a_loss(symmetric: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(64, 512, generator=generator).relu() * 1500
    dense = contrast(vectors, vectors, symmetric=symmetric, tile=None)
    tiled = contrast(vectors, vectors, symmetric=symmetric, tile=16)
    assert torch.equal(tiled, torch.zeros(64))
    torch.testing.assert_close(tiled, dense)
