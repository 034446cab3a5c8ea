"""InfoNCE without the score matrix: exact losses and gradients, one tile of scores at a time.

With anchors A [B, D], candidates K [M, D] and a scale s, the scores are S = s A K^T, -inf where a
candidate takes no part. Nothing of size [B, M] is ever held: the forward pass keeps one shift m and
one total z per row (and per column, if symmetric), the backward pass computes the tiles again.

Forward, row i, and likewise column j over i:

    m_i >= the positive's score,   z_i = sum_j exp(S_ij - m_i)
    loss_i = log sum_j exp(S_ij) - S_ii = (m_i - S_ii) + log z_i

Backward, for upstream gradients g_i (halved for each direction, if symmetric):

    P_ij = exp(S_ij - m_i) / z_i        over the row
    Q_ij = exp(S_ij - m_j) / z_j        over the column
    G_ij = dL/dS_ij = g_i P_ij - g_i [i = j]                        one way
    G_ij = (g_i P_ij + g_j Q_ij) / 2 - g_i [i = j]                  symmetric
    dL/dA = s G K,   dL/dK = s G^T A,   dL/ds = sum(A * (G K))

One product for the forward pass and three for the backward pass, in both cases: rows and columns
read the same tile and, where its range allows, the same exponentials. The idea of recomputing tiles
is that of Dao et al. 2022 ("FlashAttention", algorithms 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_infonce.nce._negatives import Negatives, blocks, positives_in_block
from rl_infonce.nce._precision import at_least_float32, autocast_off

# Shared exponentials span exp(-50) to exp(50): float32 holds both, and what underflows beside
# a sum of exp(-50), exp(-87), is below its resolution.
SAFE_RANGE = 50.0


def tiled_info_nce(
    anchors: Tensor,
    candidates: Tensor,
    scale: Tensor,
    negatives: Negatives,
    *,
    symmetric: bool,
    tile: int,
) -> Tensor:
    """Return InfoNCE losses [B] in nats from embeddings, holding one tile of scores.

    Candidate i of [M, D] is the positive of anchor i of [B, D], M >= B, and M = B if symmetric;
    `scale` is 0-dim. Differentiable once in these three. Saves them and two numbers per row (and
    column) for the backward pass.
    """
    losses: Tensor = _TiledInfoNCE.apply(  # type: ignore[no-untyped-call]
        anchors,
        candidates,
        scale,
        negatives.mask,
        negatives.moments,
        negatives.min_gap,
        symmetric,
        tile,
    )
    return losses


class _TiledInfoNCE(torch.autograd.Function):
    """Hands autograd what the functions below compute."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        candidates: Tensor,
        scale: Tensor,
        mask: Tensor | None,
        moments: Tensor | None,
        min_gap: int,
        symmetric: bool,
        tile: int,
    ) -> Tensor:
        """Return losses [B]; see `tiled_info_nce`."""
        with autocast_off(anchors):
            negatives = Negatives(mask, moments, min_gap)
            scores = _Scores.of(anchors, candidates, scale, negatives, tile)
            losses, sums = _forward(scores, symmetric)
        saved = [tensor for each in sums for tensor in (each.shifts, each.totals)]
        ctx.save_for_backward(anchors, candidates, scale, mask, moments, *saved)
        ctx.min_gap, ctx.tile = min_gap, tile
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of what `forward` took; they cannot be differentiated again."""
        if torch.is_grad_enabled():  # `create_graph=True`
            raise RuntimeError(
                "Expected one differentiation of `contrast` in tiles, got `create_graph=True`. "
                "Pass tile=None for second derivatives."
            )
        anchors, candidates, scale, mask, moments, *saved = ctx.saved_tensors
        with autocast_off(anchors):
            negatives = Negatives(mask, moments, ctx.min_gap)
            scores = _Scores.of(anchors, candidates, scale, negatives, ctx.tile)
            sums = [_LogSums(*saved[i : i + 2]) for i in range(0, len(saved), 2)]
            pulls, pushes = _backward(scores, upstream, sums, ctx.needs_input_grad)
            of_anchors = of_candidates = of_scale = None
            if ctx.needs_input_grad[2]:
                of_scale = torch.sum(at_least_float32(anchors) * pulls).to(scale)
            if ctx.needs_input_grad[0]:
                of_anchors = pulls.mul_(scale).to(anchors.dtype)
            if ctx.needs_input_grad[1]:
                of_candidates = pushes.to(candidates.dtype)
        return of_anchors, of_candidates, of_scale, None, None, None, None, None


@dataclass(frozen=True)
class _Scores:
    """S, never held: tiles of it on demand, of at most `tile` rows and columns.

    `anchors` are s A [B, D] and `candidates` K [M, D], both in at least float32.
    """

    anchors: Tensor
    candidates: Tensor
    negatives: Negatives
    tile: int

    @classmethod
    def of(
        cls, anchors: Tensor, candidates: Tensor, scale: Tensor, negatives: Negatives, tile: int
    ) -> _Scores:
        """Scale the anchors, which costs [B, D] products and not [B, M]."""
        return cls(at_least_float32(anchors) * scale, at_least_float32(candidates), negatives, tile)

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield rows, columns and scores [rows, columns], which the next step overwrites."""
        memory = self.spare()
        for rows in blocks(len(self.anchors), self.tile):
            for columns in blocks(len(self.candidates), self.tile):
                scores = _shaped(memory, rows, columns)
                torch.mm(self.anchors[rows], self.candidates[columns].T, out=scores)
                excluded = self.negatives.excluded(rows, columns)
                if excluded is not None:
                    scores.masked_fill_(excluded, -math.inf)
                yield rows, columns, scores

    def spare(self) -> Tensor:
        """Return memory for a tile; to allocate one per tile would cost page faults."""
        n_rows = min(self.tile, len(self.anchors))
        return self.anchors.new_empty(n_rows * min(self.tile, len(self.candidates)))


def _shaped(memory: Tensor, rows: slice, columns: slice) -> Tensor:
    """View the beginning of flat `memory` as [rows, columns], contiguous."""
    n_rows, n_columns = rows.stop - rows.start, columns.stop - columns.start
    return memory[: n_rows * n_columns].view(n_rows, n_columns)


@dataclass(frozen=True)
class _LogSums:
    """Running log sum exp [n] as shifts m + log(totals z).

    Apart, they lose no digits where scores are near 1e4. A shift starts at the lowest number:
    finite, whatever the mask leaves of a tile, and below every score, however it was rounded.
    """

    shifts: Tensor
    totals: Tensor

    def add(self, part: slice, shifts: Tensor, totals: Tensor) -> None:
        """Add totals relative to other shifts, both [part] or the shift 0-dim, in place."""
        largest = torch.maximum(self.shifts[part], shifts)
        old = self.totals[part] * torch.exp(self.shifts[part] - largest)
        self.totals[part] = old + totals * torch.exp(shifts - largest)
        self.shifts[part] = largest

    def logs(self) -> Tensor:
        """Return log sum exp [n]."""
        return self.shifts + self.totals.log()


def _forward(scores: _Scores, symmetric: bool) -> tuple[Tensor, list[_LogSums]]:
    """Return losses [B] and the log sums of rows and, if symmetric, of columns."""
    n_rows = len(scores.anchors)
    positives = scores.anchors.new_empty(n_rows)
    lowest = torch.full_like(positives, torch.finfo(positives.dtype).min)
    sums = [_LogSums(lowest.clone(), torch.zeros_like(lowest)) for _ in range(1 + symmetric)]
    spare = scores.spare() if symmetric else None
    for rows, columns, tile in scores.tiles():
        # Any product but the tile's own would round differently and turn a loss of 0 into 1e-3.
        part, of_tile = positives_in_block(tile, rows, columns)
        positives[part] = of_tile
        if spare is None:
            _add_rows(tile, sums[0], rows)
        else:
            _add_both(tile, sums[0], rows, sums[1], columns, _shaped(spare, rows, columns))
    # The sums of columns round otherwise than those of rows: a loss of 0 may come out below it.
    losses = [((each.shifts - positives) + each.totals.log()).clamp_min(0.0) for each in sums]
    return torch.stack(losses).mean(dim=0), sums


def _add_rows(tile: Tensor, sums: _LogSums, rows: slice) -> None:
    """Add a tile's exponentials to its rows' sums, overwriting the tile."""
    shifts = torch.maximum(sums.shifts[rows], tile.amax(dim=1))
    sums.add(rows, shifts, tile.sub_(shifts[:, None]).exp_().sum(dim=1))


def _add_both(
    tile: Tensor,
    row_sums: _LogSums,
    rows: slice,
    column_sums: _LogSums,
    columns: slice,
    spare: Tensor,
) -> None:
    """Add a tile's exponentials to its rows' and its columns' sums, overwriting both tensors.

    Relative to the tile's largest score, both read the same exponentials, unless a row or a column
    lies so far below it that they underflow.
    """
    largest = tile.amax()
    exponentials = torch.sub(tile, largest, out=spare).exp_()
    row_totals, column_totals = exponentials.sum(dim=1), exponentials.sum(dim=0)
    if torch.minimum(row_totals.min(), column_totals.min()) >= math.exp(-SAFE_RANGE):
        row_sums.add(rows, largest, row_totals)
        column_sums.add(columns, largest, column_totals)
        return
    shifts = torch.maximum(column_sums.shifts[columns], tile.amax(dim=0))
    column_sums.add(columns, shifts, torch.sub(tile, shifts, out=spare).exp_().sum(dim=0))
    _add_rows(tile, row_sums, rows)


# Turns a tile of scores, given rows and columns, into a tile of softmaxes in its own memory.
_Turn = Callable[[slice, slice, Tensor], Tensor]


def _backward(
    scores: _Scores, upstream: Tensor, sums: list[_LogSums], needed: Sequence[bool]
) -> tuple[Tensor, Tensor]:
    """Return G K [B, D] and G^T s A [M, D]; what `needed` spares is left out.

    `upstream` is g [B]; `sums` are those of rows and, if symmetric, of columns; `needed` says
    whether anchors, candidates and scale want a gradient.
    """
    one_way = len(sums) == 1
    turn = _row_softmax(sums[0]) if one_way else _both_softmaxes(scores, upstream, *sums)
    # One way, g_i / z_i multiplies [B, D] instead of every tile, which then holds z_i G_ij / g_i.
    weights = upstream / sums[0].totals if one_way else torch.ones_like(upstream)
    targets = sums[0].totals if one_way else upstream
    weighted_anchors = scores.anchors * weights[:, None]
    pulls, pushes = torch.zeros_like(scores.anchors), torch.zeros_like(scores.candidates)
    for rows, columns, tile in scores.tiles():
        gradient = turn(rows, columns, tile)
        part, positives = positives_in_block(gradient, rows, columns)
        positives.sub_(targets[part])
        if needed[0] or needed[2]:
            pulls[rows].addmm_(gradient, scores.candidates[columns])
        if needed[1]:
            pushes[columns].addmm_(gradient.T, weighted_anchors[rows])
    return pulls.mul_(weights[:, None]), pushes


def _row_softmax(sums: _LogSums) -> _Turn:
    """Turn scores into P_ij z_i = exp(S_ij - m_i)."""

    def turn(rows: slice, columns: slice, tile: Tensor) -> Tensor:
        return tile.sub_(sums.shifts[rows, None]).exp_()

    return turn


def _both_softmaxes(
    scores: _Scores, upstream: Tensor, row_sums: _LogSums, column_sums: _LogSums
) -> _Turn:
    """Turn scores into (g_i P_ij + g_j Q_ij) / 2, from one exponential if all sums are near."""
    logs = torch.cat([row_sums.logs(), column_sums.logs()])
    lowest, highest = torch.aminmax(logs)
    spare = scores.spare()
    if highest - lowest > 2 * SAFE_RANGE:
        row_weights, column_weights = (upstream / (2 * s.totals) for s in (row_sums, column_sums))

        def separate(rows: slice, columns: slice, tile: Tensor) -> Tensor:
            over_column = torch.sub(
                tile, column_sums.shifts[columns], out=_shaped(spare, rows, columns)
            )
            over_column.exp_().mul_(column_weights[columns])
            over_row = tile.sub_(row_sums.shifts[rows, None]).exp_()
            return over_row.mul_(row_weights[rows, None]).add_(over_column)

        return separate

    middle = (lowest + highest) / 2
    # P_ij = exp(S_ij - middle) exp(middle - m_i) / z_i
    row_factors, column_factors = (
        upstream / (2 * s.totals) * torch.exp(middle - s.shifts) for s in (row_sums, column_sums)
    )

    def shared(rows: slice, columns: slice, tile: Tensor) -> Tensor:
        factors = torch.add(
            row_factors[rows, None], column_factors[columns], out=_shaped(spare, rows, columns)
        )
        return tile.sub_(middle).exp_().mul_(factors)

    return shared
