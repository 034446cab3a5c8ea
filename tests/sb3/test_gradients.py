"""What reaches the host's optimiser is its own gradient plus the weighted auxiliary one."""

import gc
import weakref
from typing import Any

import pytest
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from rl_infonce.objective import TemporalInfoNCELoss
from rl_infonce.sb3.attach import (
    Attachment,
    AuxiliaryGradients,
    GradientWatch,
    _compare,
    attach_gradients,
    auxiliary_gradients,
)
from rl_infonce.sb3.update_counts import DETAILS_FREQ
from tests.sb3.worlds import ALGORITHMS, VECTOR_ALGORITHMS, Build, extractors_of, policy_kwargs

Gradients = dict[str, torch.Tensor]


def first_gradients(
    model: BaseAlgorithm, optimizer: torch.optim.Optimizer, callback: BaseCallback | None = None
) -> Gradients:
    """Train until `optimizer` steps for the first time; return what it got, unclipped."""
    got: list[Gradients] = []

    def record(*_: Any) -> None:
        if not got:
            parameters = model.policy.named_parameters()
            got.append({n: p.grad.clone() for n, p in parameters if p.grad is not None})

    handle = optimizer.register_step_pre_hook(record)
    model.learn(96, callback=callback)
    handle.remove()
    return got[0]


def gradients_of(loss: torch.Tensor, module: nn.Module) -> Gradients:
    """Return the gradient of a loss on each parameter that it depends on."""
    named = dict(module.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
    return {n: g for n, g in zip(named, found, strict=True) if g is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builds", "name"),
    [
        pytest.param(ALGORITHMS, "PPO", id="images-PPO"),
        pytest.param(ALGORITHMS, "A2C", id="images-A2C"),
        pytest.param(ALGORITHMS, "DQN", id="images-DQN"),
        pytest.param(ALGORITHMS, "SAC", id="images-SAC", marks=pytest.mark.thorough),
        pytest.param(VECTOR_ALGORITHMS, "PPO", id="vectors-PPO"),
        pytest.param(VECTOR_ALGORITHMS, "SAC", id="vectors-SAC"),
    ],
)
def test_attached_gradient_is_rl_plus_coef_times_auxiliary(
    builds: dict[str, Build], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coef = 2.5
    unclipped = {} if name == "SAC" else {"max_grad_norm": 1e9}

    def build(coef: float) -> tuple[BaseAlgorithm, torch.optim.Optimizer]:
        model = builds[name](policy_kwargs(isolated=False, infonce_coef=coef), **unclipped)
        policy: Any = model.policy
        return model, policy.critic.optimizer if name == "SAC" else policy.optimizer

    host = first_gradients(*build(0.0))
    model, optimizer = build(coef)
    extractor = extractors_of(model)[-1]  # of SAC, the critic's
    auxiliary: list[Gradients] = []
    original = type(extractor).infonce_loss

    def recording(self: Any, experience: Any) -> TemporalInfoNCELoss | None:
        result = original(self, experience)
        if self is extractor and not auxiliary and result is not None:
            auxiliary.append(gradients_of(result.loss, self))
        return result

    monkeypatch.setattr(type(extractor), "infonce_loss", recording)
    both = first_gradients(model, optimizer)
    prefix = next(n for n, m in model.policy.named_modules() if m is extractor) + "."
    assert auxiliary[0]
    checked = 0
    for entry, total in both.items():
        if not entry.startswith(prefix):
            continue
        own = auxiliary[0].get(entry.removeprefix(prefix), torch.zeros(()))
        expected = host.get(entry, torch.zeros(())) + coef * own
        assert (total - expected).norm() <= 1e-4 * expected.norm() + 1e-7
        checked += bool((coef * own).abs().max() > 1e-6)
    assert checked == len(auxiliary[0])


def small_problem() -> tuple[torch.nn.Linear, torch.Tensor, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return layer, inputs, torch.nn.Parameter(torch.ones(2, dtype=torch.float64))


def auxiliary_loss(
    layer: torch.nn.Linear, inputs: torch.Tensor, head: torch.nn.Parameter
) -> torch.Tensor:
    loss: torch.Tensor = (layer(inputs) * head).cos().sum()
    return loss


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_attaching_equals_summing_whatever_the_hosts_scale(scale: float) -> None:
    layer, inputs, head = small_problem()
    parameters = [layer.weight, layer.bias, head]
    loss = scale * layer(inputs).square().mean() + auxiliary_loss(layer, inputs, head)
    expected = torch.autograd.grad(loss, parameters)
    auxiliary = auxiliary_gradients(
        auxiliary_loss(layer, inputs, head), [layer.weight, layer.bias], [head]
    )
    assert all(parameter.grad is None for parameter in parameters)
    features = attach_gradients(layer(inputs), auxiliary)
    torch.testing.assert_close(features, layer(inputs), rtol=0, atol=0)
    backward(scale * features.square().mean())
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_backward_past_the_features_adds_nothing() -> None:
    layer, inputs, head = small_problem()
    auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), [layer.weight], [head])
    attach_gradients(layer(inputs), auxiliary)
    backward(layer(inputs).square().mean())
    assert head.grad is None


def test_parameters_without_influence_are_left_out() -> None:
    layer, inputs, head = small_problem()
    idle = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    auxiliary = auxiliary_gradients(
        auxiliary_loss(layer, inputs, head), [layer.weight, idle], [head]
    )
    assert auxiliary.n_shared == 1
    assert all(parameter is not idle for parameter in auxiliary.parameters)


@pytest.mark.parametrize("max_ratio", [None, 1e-2, 1e6])
@pytest.mark.parametrize("before", [None, 7.0])
def test_the_watch_reports_and_bounds_the_auxiliary_gradient_of_this_backward_alone(
    before: float | None, max_ratio: float | None
) -> None:
    layer, inputs, head = small_problem()
    shared = [layer.weight, layer.bias]
    host_loss = layer(inputs).square().mean()
    host = torch.cat([g.flatten() for g in torch.autograd.grad(host_loss, shared)])
    auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), shared, [head])
    own = torch.cat([g.flatten() for g in auxiliary.gradients[:2]])
    for parameter in shared:
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    reports: list[dict[str, float]] = []
    GradientWatch(auxiliary, reports.append, max_ratio=max_ratio)
    backward(attach_gradients(layer(inputs), auxiliary).square().mean())
    bound = float("inf") if max_ratio is None else max_ratio
    scale = min(1.0, bound * float(host.norm() / own.norm()))
    assert (scale < 1.0) == (max_ratio == 1e-2)
    (report,) = reports
    expected = {
        "grad_norm_rl": host.norm(),
        "grad_norm_infonce": scale * own.norm(),
        "grad_norm_heads": scale * auxiliary.gradients[2].norm(),
        "grad_cosine": torch.cosine_similarity(host, own, dim=0),
        "grad_scale": scale,
        "grad_ratio": scale * own.norm() / host.norm(),
    }
    assert report == pytest.approx({name: float(number) for name, number in expected.items()})
    total = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
    torch.testing.assert_close(total, (before or 0.0) + host + scale * own)
    torch.testing.assert_close(head.grad, scale * auxiliary.gradients[2])


def test_the_watch_looks_once_and_can_be_withdrawn() -> None:
    layer, inputs, head = small_problem()
    reports: list[dict[str, float]] = []

    def train() -> None:
        auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), [layer.weight], [head])
        backward(attach_gradients(layer(inputs), auxiliary).mean())

    auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), [layer.weight], [head])
    withdraw = GradientWatch(auxiliary, reports.append).withdraw
    withdraw()
    train()
    assert not reports
    GradientWatch(auxiliary, reports.append)
    train()
    train()
    assert len(reports) == 1


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_max_grad_ratio_bounds_the_loss_on_the_encoder(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(infonce_coef=100.0, max_grad_ratio=0.5)).learn(96)
    last = extractors_of(model)[0].last_infonce
    assert last["grad_scale"] < 1
    assert last["grad_norm_infonce"] <= 0.5 * last["grad_norm_rl"] * (1 + 1e-4)
    assert last["grad_ratio"] == pytest.approx(0.5, rel=1e-4)
    assert -1 <= last["grad_cosine"] <= 1


@pytest.mark.parametrize("name", ["SAC", "TQC"])
def test_the_curves_of_a_bounded_critic_are_those_of_its_own_updates(name: str) -> None:
    def rl_norm(**settings: Any) -> float:
        model = ALGORITHMS[name](policy_kwargs(**settings), train_freq=1)
        model.learn(62)  # the first update after 60 steps
        return extractors_of(model)[-1].last_infonce["grad_norm_rl"]

    assert rl_norm(max_grad_ratio=1e9) == pytest.approx(rl_norm(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "max_ratio"), [("PPO", 0.3), ("DQN", 2.0)])
def test_the_optimizer_gets_the_bounded_gradient(name: str, max_ratio: float) -> None:
    def gradients(**settings: Any) -> Gradients:
        model: Any = ALGORITHMS[name](policy_kwargs(**settings), max_grad_norm=1e9)
        every = first_gradients(model, model.policy.optimizer)
        return {n: g for n, g in every.items() if ".cnn." in n or ".linear." in n}

    host = gradients(infonce_coef=0.0)
    free = gradients(infonce_coef=100.0)
    bounded = gradients(infonce_coef=100.0, max_grad_ratio=max_ratio)
    host_vector = torch.cat([gradient.flatten() for gradient in host.values()])
    own = torch.cat([(free[n] - host[n]).flatten() for n in host])
    kept = torch.cat([(bounded[n] - host[n]).flatten() for n in host])
    assert own.norm() > 2 * max_ratio * host_vector.norm()
    assert float(kept.norm() / host_vector.norm()) == pytest.approx(max_ratio, rel=1e-3)
    assert torch.cosine_similarity(kept, own, dim=0) > 0.999


@pytest.mark.parametrize(
    ("host", "own", "max_ratio", "scale", "cosine", "ratio"),
    [
        (2.0, 0.4, 0.3, 1.0, 1.0, 0.2),
        (2.0, -1.0, 0.3, 0.6, -1.0, 0.3),
        (2.0, 9.0, None, 1.0, 1.0, 4.5),
        (0.0, 1.0, 0.3, 0.0, 0.0, None),
        (0.0, 1.0, None, 1.0, 0.0, None),
        (2.0, 0.0, 0.3, 1.0, 0.0, 0.0),
        (float("inf"), 1.0, 0.3, 1.0, float("nan"), 0.0),
        (float("nan"), 1.0, 0.3, 1.0, 0.0, None),
    ],
)
def test_the_comparison_of_two_gradients_by_hand(
    host: float, own: float, max_ratio: float | None, scale: float, cosine: float, ratio: Any
) -> None:
    parameter = torch.zeros(1, requires_grad=True)
    auxiliary = AuxiliaryGradients((parameter,), (torch.tensor([own]),), n_shared=1)
    report = _compare(auxiliary, {id(parameter): torch.tensor([host + own])}, max_ratio)
    assert report["grad_scale"] == pytest.approx(scale)
    assert report["grad_cosine"] == pytest.approx(cosine, nan_ok=True)
    assert report["grad_norm_infonce"] == pytest.approx(scale * abs(own))
    assert report.get("grad_ratio") == (ratio if ratio is None else pytest.approx(ratio))


def test_gradients_that_nobody_asks_about_are_not_watched() -> None:
    layer, inputs, head = small_problem()
    for on_numbers, max_ratio, n_expected in ((None, None, 0), (print, None, 3), (None, 1.0, 3)):
        attachment = Attachment()
        loss = auxiliary_loss(layer, inputs, head)
        auxiliary = auxiliary_gradients(loss, [layer.weight], [head])
        attachment.attach(layer(inputs), auxiliary, on_numbers, max_ratio)
        assert n_hooks(layer) + n_hooks(torch.nn.ParameterList([head])) == n_expected
        attachment.attach(layer(inputs), None, None, None)
        assert n_hooks(layer) == 0


def test_only_shared_leaves_can_be_compared_with_the_hosts_gradients() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    for parameters, n_shared, expected in (
        ((leaf, leaf), 1, True),
        ((leaf,), 0, False),
        ((2 * leaf, leaf), 1, False),
        ((leaf, 2 * leaf), 2, False),
    ):
        gradients = tuple(torch.ones(1) for _ in parameters)
        assert AuxiliaryGradients(parameters, gradients, n_shared).reaches_parameters is expected


def test_gradients_of_gradients_are_refused_rather_than_wrong() -> None:
    layer, inputs, head = small_problem()
    auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), [layer.weight], [head])
    loss = attach_gradients(layer(inputs), auxiliary).square().sum()
    (gradient,) = torch.autograd.grad(loss, [layer.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        backward(gradient.sum())


def test_gradients_that_were_watched_do_not_stay_in_memory() -> None:
    layer, inputs, head = small_problem()
    attachment = Attachment()
    auxiliary = auxiliary_gradients(auxiliary_loss(layer, inputs, head), [layer.weight], [head])
    gradient = weakref.ref(auxiliary.gradients[0])
    backward(attachment.attach(layer(inputs), auxiliary, lambda _: None, None).mean())
    del auxiliary
    attachment.attach(layer(inputs), None, None, None)  # the next update, which has none
    gc.collect()
    assert gradient() is None


def test_a_forward_without_its_backward_leaves_no_hook_and_no_gradient() -> None:
    """PPO's target_kl stops between the two."""
    model = ALGORITHMS["PPO"](target_kl=1e-12, n_epochs=4)
    (extractor,) = extractors_of(model)
    model.learn(64)
    stopped_at = extractor._session.counts.n_updates
    assert 1 < stopped_at < 8
    extractor._session.counts.n_updates = DETAILS_FREQ  # so that the next forward is watched
    extractor.auto_bind = False  # so that it carries the loss wherever it is called
    images = torch.rand(4, *(model.observation_space.shape or ()))
    extractor.zero_grad()
    extractor(images)
    assert n_hooks(extractor) > 0
    assert all(parameter.grad is None for parameter in extractor.parameters())
    extractor.last_infonce.clear()
    backward(extractor(images).sum())
    assert n_hooks(extractor) == 0
    assert "grad_norm_rl" not in extractor.last_infonce


def n_hooks(module: torch.nn.Module) -> int:
    """Return the number of hooks that wait for a backward."""
    kinds = ("_post_accumulate_grad_hooks", "_backward_hooks")
    hooks = [getattr(p, kind, None) for p in module.parameters() for kind in kinds]
    return sum(len(waiting) for waiting in hooks if waiting)
