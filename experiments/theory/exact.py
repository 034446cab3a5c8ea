"""What the experiments on finite supports share: exact expectations, exact optima, one command."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_infonce.report.statistics import t_interval

Result = dict[str, Any]


class Rows(NamedTuple):
    """Every outcome of drawing a context, a positive and K noise samples, with its probability.

    Attributes:
        contexts: [R] int64.
        positives: [R] int64.
        noise: [R, K] int64.
        weights: [R] float64 probabilities, summing to 1.
    """

    contexts: Tensor
    positives: Tensor
    noise: Tensor
    weights: Tensor

    def mean(self, losses: Tensor) -> Tensor:
        """Return the expectation of losses [R]."""
        return (self.weights * losses).sum()


def enumerated(joint: Tensor, q: Tensor, n_noise: int) -> Rows:
    """Return the rows for independent noise; its order never matters, so multisets are enough.

    Args:
        joint: [C, V] probabilities of context and positive.
        q: [V] probabilities of the noise.
        n_noise: K >= 1; there are binomial(V + K - 1, K) multisets.
    """
    multisets = itertools.combinations_with_replacement(range(len(q)), n_noise)
    noise = torch.tensor(list(multisets))  # [M, K]
    counts = torch.nn.functional.one_hot(noise, len(q)).sum(dim=1)  # [M, V]
    log_orders = math.lgamma(n_noise + 1) - torch.lgamma(counts.double() + 1).sum(dim=1)
    return _crossed(joint, noise, (log_orders + counts.double() @ q.log()).exp())


def copied(joint: Tensor, q: Tensor, n_noise: int) -> Rows:
    """Return rows whose K noise samples are all the same draw: V of them whatever K.

    They have the expectation of K independent draws for losses that are sums over noise samples,
    as `local_nce` and `negative_sampling` are, and for no others.
    """
    noise = torch.arange(len(q))[:, None].expand(-1, n_noise)  # [V, K]
    return _crossed(joint, noise, q)


def _crossed(joint: Tensor, noise: Tensor, noise_weights: Tensor) -> Rows:
    """Return each pair of context and positive with each row of noise."""
    n_contexts, n_outcomes = joint.shape
    pairs = torch.cartesian_prod(
        torch.arange(n_contexts), torch.arange(n_outcomes), torch.arange(len(noise))
    )
    contexts, positives, drawn = pairs.unbind(dim=1)
    weights = joint[contexts, positives] * noise_weights[drawn]
    return Rows(contexts, positives, noise[drawn], weights)


def minimise(parameters: list[Tensor], loss: Callable[[], Tensor]) -> float:
    """Minimise in place by L-BFGS with strong Wolfe line search; return the loss reached."""
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=500,
        max_eval=1000,
        tolerance_grad=1e-13,
        tolerance_change=1e-18,
        history_size=30,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return float(loss().detach())


def zeros(*shape: int) -> Tensor:
    """Return float64 parameters at zero."""
    return torch.zeros(shape, dtype=torch.float64, requires_grad=True)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean, and the half-width of its 95 % t interval."""
    mean, _, high = t_interval(values)
    return mean, high - mean


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- ", "|---")


def command(
    script: str,
    doc: str | None,
    compute: Callable[[], Result],
    table: Callable[[Result], str],
    draw: Callable[[Result, Path], None],
) -> None:
    """Parse --output, compute on one torch thread, write NAME.json and NAME.png, print the table.

    Args:
        script: Path of the experiment; its stem names the files.
        doc: Its module docstring.
        compute: Returns what goes into the JSON file.
        table: Returns the table of that.
        draw: Draws that into a file.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and figure")
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    output.mkdir(parents=True, exist_ok=True)
    result = compute()
    path = output / f"{Path(script).stem}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    draw(json.loads(path.read_text()), path.with_suffix(".png"))
    print(table(json.loads(path.read_text())))
