"""The published protocol of Anand et al. 2019, with one product per step for all variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_infonce.checks import check_choice, check_count, check_number, check_shape
from rl_infonce.probing.data import N_CLASSES, IntArray, Labels
from rl_infonce.probing.linear import Classifier, Probe
from rl_infonce.probing.splits import Split


@dataclass(frozen=True)
class Anand2019:
    """Settings of the published probe; the defaults produced the paper's tables.

    They follow "Unsupervised State Representation Learning in Atari", Anand et al. 2019, and its
    code. Features enter as they are, so the score measures their conditioning and their content.

    Attributes:
        sampling: "episodes" draws a uniform episode and then a uniform frame of it, with
            replacement, as often as there are frames: short episodes weigh more. "frames" visits
            every frame once per epoch in random order. This holds for training and validation.
        resample_test: Whether test frames are also drawn as "episodes" draws them; otherwise each
            is scored once.
        learning_rate: Learning rate of Adam, whose eps is 1e-5.
        batch_size: Number of frames per step.
        max_epochs: Number of epochs after which every variable stops.
        patience: Epochs without a higher validation accuracy after which a variable stops.
        plateau_patience: Number of such epochs before the variable's learning rate shrinks to a
            fifth, down to 1e-5.
    """

    sampling: str = "episodes"
    resample_test: bool = True
    learning_rate: float = 3e-4
    batch_size: int = 64
    max_epochs: int = 100
    patience: int = 15
    plateau_patience: int = 5

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, ["episodes", "frames"])
        check_number("learning_rate", self.learning_rate, above=0)
        for name in ("batch_size", "patience"):
            check_count(name, getattr(self, name))
        for name in ("max_epochs", "plateau_patience"):
            check_count(name, getattr(self, name), at_least=0)


def fit_anand2019(
    features: npt.NDArray[np.float32],
    labels: Labels,
    split: Split,
    settings: Anand2019,
    *,
    episode_ids: IntArray | None,
    seed: int,
    device: torch.device | str,
) -> Probe:
    """Train one `Linear(D, 256)` per variable; see `Anand2019` and `fit_probe`."""
    if episode_ids is not None:
        check_shape("episode_ids", episode_ids, (len(features),))
    elif settings.sampling == "episodes":
        raise ValueError(
            "Expected `episode_ids` for Anand2019 with sampling='episodes', got None. Pass them, "
            "or protocol=Anand2019(sampling='frames')."
        )
    inputs = torch.as_tensor(features, device=device)
    largest = inputs.abs().max()
    if torch.isinf(largest.square()):
        raise ValueError(
            f"Expected `features` whose squares float32 holds, up to 1.8e19, got {largest:.1e}: "
            "Adam would not move. Look whether the encoder has diverged, or scale its features."
        )
    targets = torch.as_tensor(np.stack(list(labels.values())).astype(np.int64), device=device)
    variables = _new_variables(list(labels), inputs.shape[1], settings, seed, inputs.device)
    _train(variables, inputs, targets, split, episode_ids, settings, np.random.default_rng(seed))
    zeros = torch.zeros(inputs.shape[1], device=inputs.device)
    return Probe(
        "anand2019",
        {v.name: v.classifier() for v in variables},
        zeros,
        zeros + 1,
        {**asdict(settings), "n_epochs": {v.name: v.n_epochs for v in variables}},
    )


def _train(
    variables: list[_Variable],
    inputs: Tensor,
    targets: Tensor,
    split: Split,
    episode_ids: IntArray | None,
    settings: Anand2019,
    rng: np.random.Generator,
) -> None:
    """Train every variable on its targets [V, K] until it stops, or for the most epochs."""
    for _ in range(settings.max_epochs):
        active = [variable for variable in variables if not variable.stopped]
        if not active:
            return
        training = _ActiveVariables(active, targets[[variable.index for variable in active]])
        for rows in batches(split.train, episode_ids, settings, rng):
            training.step(inputs[rows], rows)
        accuracies = training.accuracy(
            (inputs[rows], rows) for rows in batches(split.validation, episode_ids, settings, rng)
        )
        for variable, accuracy in zip(active, accuracies, strict=True):
            variable.judge(accuracy)


def draw_by_episode(rows: IntArray, episode_ids: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw as many rows as are given: each time a uniform episode, then a uniform frame of it.

    `episode_ids` [K] holds the episode of every row of the data, not only of those to draw from.
    """
    order = np.argsort(episode_ids[rows], kind="stable")
    _, starts, lengths = np.unique(episode_ids[rows][order], return_index=True, return_counts=True)
    episodes = rng.integers(len(starts), size=len(rows))
    within = rng.integers(lengths[episodes])
    drawn: IntArray = rows[order[starts[episodes] + within]]
    return drawn


def batches(
    rows: IntArray, episode_ids: IntArray | None, settings: Anand2019, rng: np.random.Generator
) -> Iterator[IntArray]:
    """Yield the batches of one epoch; an incomplete last batch is dropped unless it is the only."""
    if settings.sampling == "episodes" and episode_ids is not None:
        order = draw_by_episode(rows, episode_ids, rng)
    else:
        order = rng.permutation(rows)
    size = min(settings.batch_size, len(order))
    for start in range(0, len(order) - size + 1, size):
        yield order[start : start + size]


class _Variable:
    """One variable's weights, optimiser, schedule and early stop."""

    def __init__(self, index: int, name: str, weight: Tensor, bias: Tensor, settings: Anand2019):
        self.index, self.name, self.settings = index, name, settings
        self.weight, self.bias = weight, bias
        self.optimizer = torch.optim.Adam(
            [weight, bias], lr=settings.learning_rate, eps=1e-5, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer,
            mode="max",
            factor=0.2,
            patience=settings.plateau_patience,
            min_lr=1e-5,
        )
        self.best_accuracy = -1.0
        self.n_epochs, self.n_stale, self.stopped = 0, 0, False

    def judge(self, accuracy: float) -> None:
        """Take the validation accuracy after an epoch into account."""
        self.n_epochs += 1
        if accuracy > self.best_accuracy:
            self.best_accuracy, self.n_stale = accuracy, 0
        else:
            self.n_stale += 1
            self.stopped = self.n_stale >= self.settings.patience
        if not self.stopped:
            self.schedule.step(accuracy)

    def classifier(self) -> Classifier:
        """Return the last weights, which the published code tests, not the best ones."""
        weight, bias = self.weight.clone(), self.bias.clone()
        return Classifier(weight, bias, np.arange(N_CLASSES, dtype=np.uint8))


class _ActiveVariables:
    """The variables that still train: their weights are views of one matrix."""

    def __init__(self, variables: list[_Variable], targets: Tensor) -> None:
        self.variables, self.targets = variables, targets  # [V, K]
        self.weight = torch.cat([variable.weight for variable in variables])  # [V * 256, D]
        self.bias = torch.cat([variable.bias for variable in variables])
        self.weight_gradient = torch.empty_like(self.weight)
        self.bias_gradient = torch.empty_like(self.bias)
        for position, variable in enumerate(variables):
            rows = slice(position * N_CLASSES, (position + 1) * N_CLASSES)
            variable.weight.data, variable.bias.data = self.weight[rows], self.bias[rows]
            variable.weight.grad = self.weight_gradient[rows]
            variable.bias.grad = self.bias_gradient[rows]

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the scores [B, V, 256]."""
        return torch.addmm(self.bias, inputs, self.weight.T).view(len(inputs), -1, N_CLASSES)

    def step(self, inputs: Tensor, rows: IntArray) -> None:
        """Take one step of Adam for every variable on its own mean cross-entropy."""
        excess = F.softmax(self.scores(inputs), dim=2)  # [B, V, 256]
        targets = self.targets[:, rows].T.unsqueeze(2)  # [B, V, 1]
        excess.scatter_add_(2, targets, torch.full_like(targets, -1.0, dtype=excess.dtype))
        flat = excess.view(len(inputs), -1) / len(inputs)
        torch.mm(flat.T, inputs, out=self.weight_gradient)
        torch.sum(flat, dim=0, out=self.bias_gradient)
        for variable in self.variables:
            variable.optimizer.step()

    def accuracy(self, batches: Iterator[tuple[Tensor, IntArray]]) -> list[float]:
        """Return the share of right predictions of each variable."""
        hits = torch.zeros(len(self.variables), dtype=torch.int64, device=self.weight.device)
        n_frames = 0
        for inputs, rows in batches:
            predictions = self.scores(inputs).argmax(dim=2).T  # [V, B]
            hits += (predictions == self.targets[:, rows]).sum(dim=1)
            n_frames += len(rows)
        shares: list[float] = (hits.double() / n_frames).tolist()
        return shares


def _new_variables(
    names: list[str], n_features: int, settings: Anand2019, seed: int, device: torch.device
) -> list[_Variable]:
    """Return new variables, initialised like `torch.nn.Linear` from their own random stream."""
    generator = torch.Generator().manual_seed(seed)
    bound = n_features**-0.5
    found = []
    for index, name in enumerate(names):
        weight = torch.empty(N_CLASSES, n_features).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(N_CLASSES).uniform_(-bound, bound, generator=generator)
        found.append(_Variable(index, name, weight.to(device), bias.to(device), settings))
    return found
