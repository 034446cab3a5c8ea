import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_infonce.nce import contrast
from tests.draws import normal

SYMMETRIC = pytest.mark.parametrize("symmetric", [False, True])
EITHER_WAY = pytest.mark.parametrize("tile", [None, 2])


def embeddings(n_rows: int, seed: int) -> Tensor:
    return normal(n_rows, 3, seed=seed)


@SYMMETRIC
def test_contrast_of_the_surest_pairs_is_never_negative(symmetric: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(640, 128, generator=generator)
    candidates = anchors + 0.02 * torch.randn(640, 128, generator=generator)
    losses = contrast(
        anchors, candidates, scale=50.0, normalize=True, symmetric=symmetric, tile=256
    )
    assert losses.min() >= 0.0


@SYMMETRIC
def test_contrast_scale_multiplies_every_score(symmetric: bool) -> None:
    anchors, candidates = embeddings(4, 0), embeddings(4, 1)
    expected = contrast(5.0 * anchors, candidates, symmetric=symmetric)
    for scale in (5.0, torch.tensor(5.0)):
        losses = contrast(anchors, candidates, scale=scale, symmetric=symmetric)
        torch.testing.assert_close(losses, expected)


@SYMMETRIC
def test_contrast_zero_vectors_score_zero_without_wild_gradients(symmetric: bool) -> None:
    anchors = torch.zeros(3, 2, requires_grad=True)
    losses = contrast(anchors, torch.eye(3, 2), normalize=True, symmetric=symmetric, scale=10.0)
    (gradient,) = torch.autograd.grad(losses.sum(), anchors)
    assert losses.tolist() == pytest.approx([math.log(3)] * 3)
    assert gradient.abs().max() <= 20.0
    assert gradient.abs().max() > 0.0


@EITHER_WAY
@pytest.mark.parametrize("size", [1e-30, 1e-25, 1e20, 1e38])
def test_contrast_normalizes_vectors_of_any_length(size: float, tile: int | None) -> None:
    def losses_and_gradient(size: float) -> tuple[Tensor, Tensor]:
        anchors = (size * embeddings(4, 0).float()).requires_grad_()
        candidates = size * embeddings(4, 1).float()
        losses = contrast(anchors, candidates, normalize=True, scale=10.0, tile=tile)
        return losses.detach(), size * torch.autograd.grad(losses.sum(), anchors)[0]

    for found, expected in zip(losses_and_gradient(size), losses_and_gradient(1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_contrast_multiplies_half_precision_in_float32(normalize: bool) -> None:
    anchors, candidates = embeddings(8, 0).bfloat16(), embeddings(8, 1).bfloat16()
    expected = contrast(anchors.float(), candidates.float(), scale=20.0, normalize=normalize)
    losses = contrast(anchors, candidates, scale=20.0, normalize=normalize)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = contrast(anchors.float(), candidates.float(), scale=20.0, normalize=normalize)
    assert losses.dtype == inside.dtype == torch.float32
    assert torch.equal(losses, expected)
    assert torch.equal(inside, expected)


@SYMMETRIC
@EITHER_WAY
@pytest.mark.parametrize("is_checked", [False, True])
def test_contrast_of_an_anchor_without_candidates_costs_nothing(
    is_checked: bool, symmetric: bool, tile: int | None
) -> None:
    anchors, candidates = (embeddings(5, seed).requires_grad_() for seed in (0, 1))
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[3] = mask[:, 3] = False
    warns = pytest.warns(UserWarning, match=r"1 of 5 rows have no candidate and so loss 0: 3\.")
    with warns if is_checked else nullcontext() as caught:
        losses = contrast(
            anchors, candidates, mask=mask, symmetric=symmetric, tile=tile, validate_args=is_checked
        )
    assert len(caught or ()) == is_checked
    gradients = torch.autograd.grad(losses.sum(), (anchors, candidates))
    assert float(losses.detach()[3]) == 0.0
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(not gradient[3].any() for gradient in gradients)
    kept = torch.tensor([0, 1, 2, 4])
    expected = contrast(anchors[kept], candidates[kept], symmetric=symmetric)
    torch.testing.assert_close(losses[kept], expected)


@SYMMETRIC
@EITHER_WAY
@pytest.mark.parametrize("rule", ["mask", "times"])
def test_contrast_names_an_anchor_without_negatives(
    rule: str, symmetric: bool, tile: int | None
) -> None:
    anchors, candidates = embeddings(5, 0), embeddings(5, 1)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[3] = mask[:, 3] = False
    mask[3, 3] = True
    settings: dict[str, Any] = {"mask": mask}
    if rule == "times":  # the fourth lies between two others, which are far enough apart
        episodes, times = torch.zeros(5, dtype=torch.long), torch.tensor([0, 1, 11, 6, 12])
        settings = {"episodes": episodes, "times": times, "min_gap": 7}
    with pytest.warns(UserWarning, match=r"1 of 5 rows have no negative and so loss 0: 3\."):
        losses = contrast(anchors, candidates, symmetric=symmetric, tile=tile, **settings)
    assert (losses == 0.0).tolist() == [False, False, False, True, False]
    contrast(anchors, candidates, symmetric=symmetric, tile=tile, validate_args=False, **settings)


def test_contrast_does_not_name_an_anchor_that_is_sure_or_has_no_candidate() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    with pytest.warns(UserWarning, match=r"no candidate") as caught:
        losses = contrast(100.0 * torch.eye(3), torch.eye(3), mask=mask)
    assert losses.tolist() == [0.0] * 3
    assert len(caught) == 1


def test_contrast_names_the_only_pair_of_a_batch() -> None:
    with pytest.warns(UserWarning, match=r"1 of 1 rows have no negative and so loss 0: 0\."):
        contrast(torch.ones(1, 2), torch.ones(1, 2))


@EITHER_WAY
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["anchors", "candidates"])
def test_contrast_refuses_embeddings_that_are_not_finite(
    name: str, bad: float, normalize: bool, tile: int | None
) -> None:
    anchors, candidates = embeddings(4, 0), embeddings(4, 1)
    (anchors if name == "anchors" else candidates)[2, 1] = bad
    given: dict[str, Any] = {"normalize": normalize, "tile": tile}
    with pytest.raises(ValueError, match=rf"`{name}` to be finite, got 1 of 12"):
        contrast(anchors, candidates, **given)
    losses = contrast(anchors, candidates, **given, validate_args=False)
    assert bool(losses.isnan().any())


@EITHER_WAY
def test_contrast_refuses_scores_beyond_float32(tile: int | None) -> None:
    large = 1e30 * torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"float32 can hold, got 3 of 3 losses.*normalize=True"):
        contrast(large, large, tile=tile)


def test_contrast_refuses_a_column_without_its_positive_only_both_ways() -> None:
    anchors, candidates = embeddings(3, 0), embeddings(3, 1)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    with pytest.warns(UserWarning, match="no candidate"):
        assert contrast(anchors, candidates, mask=mask).tolist()[1] == 0.0
    with pytest.raises(ValueError, match=r"1 of 3 columns without it: 1\. .*row i and column i"):
        contrast(anchors, candidates, mask=mask, symmetric=True)


def test_contrast_names_the_callers_column_of_a_positive_that_the_mask_excludes() -> None:
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 5] = False
    with pytest.raises(ValueError, match=r"\(column i \+ 4 of row i\) of every row .*: 1\.$"):
        contrast(embeddings(2, 0), embeddings(6, 1), mask=mask, offset=4)


ones = torch.ones


@pytest.mark.parametrize(
    ("anchors", "candidates", "error", "message"),
    [
        (ones(2, 3, 4), ones(3, 4), ValueError, r"`anchors` of shape \[B, D\], got \(2, 3"),
        (ones(2, 3), ones(2, 4), ValueError, r"`candidates` of shape \[M, 3\], got \(2, 4"),
        (ones(3, 3), ones(2, 3), ValueError, r"as many `candidates`, got 3 and 2"),
        (ones(2, 2).int(), ones(2, 2).int(), TypeError, r"`anchors`.*int32"),
        (ones(2, 2), ones(2, 2).double(), TypeError, r"`candidates`.*float32.*float64"),
        (ones(2, 2), ones(2, 2, device="meta"), ValueError, r"`candidates`.*cpu.*meta"),
        (ones(0, 2), ones(2, 2), ValueError, r"at least one of `anchors`.*0 and 2"),
    ],
)
def test_contrast_refuses_embeddings_of_another_kind(
    anchors: Tensor, candidates: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        contrast(anchors, candidates)


SCALES, TILES = (0.0, -1.0, math.nan, math.inf), ("all", 1.5, True)
TWO, THREE = torch.arange(2), torch.arange(3)
OF_THREE = {"episodes": THREE, "times": THREE}
FAR_APART = torch.tensor([-(2**62), 2**62 - 1])


@pytest.mark.parametrize(
    ("n_candidates", "settings", "error", "message"),
    [
        (3, {"symmetric": True}, ValueError, "as many `candidates` as `anchors`.* got 3 and 2"),
        *((2, {"scale": s}, ValueError, "`scale` to be a finite number > 0, got") for s in SCALES),
        (2, {"scale": torch.ones(1)}, ValueError, r"0-dim `scale`, got a tensor of shape \(1,\)"),
        *((2, {"tile": tile}, TypeError, "`tile` to be an integer, None or") for tile in TILES),
        (2, {"tile": 0}, ValueError, "`tile` to be a finite number >= 1, got 0"),
        (3, {"offset": -1}, ValueError, "`offset` to be a finite number >= 0, got -1"),
        (3, {"offset": 2}, ValueError, r"`offset` at most 1 \(candidates .*\), got 2"),
        (3, {"offset": 1.0}, TypeError, r"`offset` to be an integer, got 1\.0"),
        (2, {"episodes": TWO}, ValueError, "together, got no `times`"),
        (2, {"times": TWO}, ValueError, "together, got no `episodes`"),
        (3, {**OF_THREE, "episodes": TWO}, ValueError, r"`episodes` of shape \[3\], got \(2,\)"),
        (3, {**OF_THREE, "times": TWO}, ValueError, r"`times` of shape \[3\], got \(2,\)"),
        (3, {**OF_THREE, "episodes": torch.ones(3)}, TypeError, "`episodes` to hold integers, got"),
        (3, {**OF_THREE, "times": torch.ones(3)}, TypeError, "`times` to hold integers, got torch"),
        (
            3,
            {**OF_THREE, "min_gap": -1},
            ValueError,
            "`min_gap` to be a finite number >= 0, got -1",
        ),
        (3, {**OF_THREE, "min_gap": 1.5}, TypeError, r"`min_gap` to be an integer, got 1\.5"),
        (2, {"min_gap": 5}, ValueError, "`episodes` and `times` with `min_gap`=5, got none"),
        (2, {"episodes": TWO, "times": FAR_APART}, ValueError, "fits into 64 bits, got 2 episodes"),
    ],
)
def test_contrast_refuses_settings_that_do_not_fit(
    n_candidates: int, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        contrast(torch.zeros(2, 3), torch.zeros(n_candidates, 3), **settings)


@pytest.mark.parametrize(
    "rule",
    [
        {"mask": torch.tensor([[True, True, False]] * 2)},
        {"episodes": torch.zeros(3, dtype=torch.long), "times": THREE, "min_gap": 9},
    ],
)
def test_a_candidate_that_is_not_finite_is_named_though_it_takes_no_part(
    rule: dict[str, Any],
) -> None:
    candidates = torch.zeros(3, 2)
    candidates[2] = math.nan
    with pytest.raises(ValueError, match=r"`candidates`.*finite"):
        contrast(torch.zeros(2, 2), candidates, **rule)
