import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_infonce.nce import BilinearCritic, CosineCritic, Critic, SeparableMLPCritic, info_nce
from tests import oracles
from tests.draws import normal, seeded

Build = Callable[..., Critic]
Shape = tuple[int, int]

CRITICS: dict[str, Build] = {
    "bilinear": BilinearCritic,
    "plain bilinear": partial(BilinearCritic, layer_norm=False),
    "cosine": partial(CosineCritic, projection_dim=6),
    "learned cosine": partial(CosineCritic, projection_dim=6, learn_temperature=True),
    "separable": partial(SeparableMLPCritic, hidden_dim=8, projection_dim=6),
}
EACH = pytest.mark.parametrize("build", CRITICS.values(), ids=CRITICS.keys())


def sides(n_anchors: int = 2, n_candidates: int = 5) -> tuple[Tensor, Tensor]:
    """Return anchors of 3 numbers and candidates of 4."""
    return normal(n_anchors, 3, seed=1), normal(n_candidates, 4, seed=2)


def rows(matrix: Tensor) -> list[list[float]]:
    numbers: list[list[float]] = matrix.detach().tolist()
    return numbers


def assert_close(scores: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(scores.detach(), torch.tensor(expected, dtype=torch.float64))


def test_bilinear_critic_equals_loop_oracle_of_its_horizon() -> None:
    critic = BilinearCritic(3, 4, 2, generator=seeded()).double()
    anchors, candidates = sides()
    left = [
        oracles.vector_times_matrix(oracles.standardized(anchor), rows(critic.weight[1]))
        for anchor in rows(anchors)
    ]
    right = [oracles.standardized(candidate) for candidate in rows(candidates)]
    products = oracles.dot_products(left, right)
    assert_close(critic(anchors, candidates, 1), [[x / 2.0 for x in row] for row in products])


def test_bilinear_critic_without_layer_norm_is_the_form_of_the_paper() -> None:
    critic = BilinearCritic(3, 4, 2, generator=seeded(), layer_norm=False).double()
    anchors, candidates = sides()
    left = [oracles.vector_times_matrix(anchor, rows(critic.weight[1])) for anchor in rows(anchors)]
    assert_close(critic(anchors, candidates, 1), oracles.dot_products(left, rows(candidates)))


def test_cosine_critic_equals_loop_oracle_of_its_horizon() -> None:
    critic = CosineCritic(3, 4, 2, generator=seeded(), projection_dim=6, temperature=0.5).double()
    critic.log_scale.fill_(math.log(2.0))  # the float32 logarithm, in float64
    anchors, candidates = sides()
    into, shared = rows(critic.anchor_projection[1]), rows(critic.candidate_projection)
    left = [oracles.unit(oracles.vector_times_matrix(anchor, into)) for anchor in rows(anchors)]
    right = [oracles.unit(oracles.vector_times_matrix(c, shared)) for c in rows(candidates)]
    products = oracles.dot_products(left, right)
    assert_close(critic(anchors, candidates, 1), [[x / 0.5 for x in row] for row in products])


def test_separable_mlp_critic_equals_loop_oracle_of_its_horizon() -> None:
    critic = SeparableMLPCritic(
        3, 4, 2, generator=seeded(), hidden_dim=8, projection_dim=16
    ).double()
    with torch.no_grad():
        critic.anchor_bias.copy_(normal(8, seed=3))
        critic.candidate_bias.copy_(normal(8, seed=4))
    anchors, candidates = sides()

    def network(vector: list[float], hidden: Tensor, bias: Tensor, output: Tensor) -> list[float]:
        before = oracles.vector_times_matrix(vector, rows(hidden))
        units = [max(0.0, x + b) for x, b in zip(before, bias.tolist(), strict=True)]
        return oracles.vector_times_matrix(units, rows(output))

    left = [
        network(anchor, critic.anchor_hidden, critic.anchor_bias, critic.anchor_output[1])
        for anchor in rows(anchors)
    ]
    right = [
        network(c, critic.candidate_hidden, critic.candidate_bias, critic.candidate_output)
        for c in rows(candidates)
    ]
    products = oracles.dot_products(left, right)
    assert_close(critic(anchors, candidates, 1), [[x / 4.0 for x in row] for row in products])


@EACH
def test_critics_pass_gradcheck(build: Build) -> None:
    critic = build(3, 4, 2, generator=seeded()).double()
    names = [name for name, _ in critic.named_parameters()]
    parameters = tuple(critic.parameters())

    def scores(anchors: Tensor, candidates: Tensor, *values: Tensor) -> Tensor:
        replaced = dict(zip(names, values, strict=True))
        result: Tensor = functional_call(critic, replaced, (anchors, candidates, 1))
        return result

    inputs = (*(side.requires_grad_() for side in sides(2, 3)), *parameters)
    assert torch.autograd.gradcheck(scores, inputs)


@EACH
def test_critics_train_only_the_parameters_of_the_horizon(build: Build) -> None:
    critic = build(3, 4, 3, generator=seeded()).double()
    anchors, candidates = sides(3)
    all_scores = [critic(anchors, candidates, k) for k in range(3)]
    assert not torch.allclose(all_scores[0], all_scores[1])
    assert not torch.allclose(all_scores[1], all_scores[2])
    info_nce(all_scores[1]).sum().backward()  # type: ignore[no-untyped-call]
    per_horizon = [p.grad for p in critic.parameters() if p.ndim == 3]
    assert len(per_horizon) == 1
    gradient = per_horizon[0]
    assert gradient is not None
    assert [bool(gradient[k].any()) for k in range(3)] == [False, True, False]


@EACH
@pytest.mark.parametrize("per_place", [False, True], ids=["one anchor", "an anchor per place"])
def test_each_place_is_scored_by_the_critic_of_its_own_parameters(
    build: Build, per_place: bool
) -> None:
    critic = build(3, 4, 2, generator=seeded(), n_places=5).double()
    anchors = normal(5, 2, 3, seed=1) if per_place else normal(2, 3, seed=1)
    candidates = normal(5, 6, 4, seed=2)
    scores = critic(anchors, candidates, 1)
    assert scores.shape == (5, 2, 6)
    for place in range(5):
        alone = build(3, 4, 2, generator=seeded()).double()
        own = {n: v[:, place] if v.ndim == 4 else v for n, v in critic.state_dict().items()}
        alone.load_state_dict(own)
        expected = alone(anchors[place] if per_place else anchors, candidates[place], 1)
        torch.testing.assert_close(scores[place], expected)
    assert not torch.allclose(*(critic(*sides(2, 6), 1)[p] for p in (0, 1)))


@EACH
@pytest.mark.parametrize("name", ["anchors", "candidates"])
def test_critics_refuse_another_number_of_places(build: Build, name: str) -> None:
    shapes = {"anchors": (5, 2, 3), "candidates": (5, 6, 4)}
    shapes[name] = (4, *shapes[name][1:])
    with pytest.raises(ValueError, match=rf"`{name}` of shape \[., .\] or \[5, ., .\], got \(4,"):
        build(3, 4, generator=seeded(), n_places=5)(*map(torch.zeros, shapes.values()))


@EACH
def test_critics_reach_every_parameter(build: Build) -> None:
    critic = build(3, 4, generator=seeded())
    losses = info_nce(critic(*(side.float() for side in sides(4))))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.any()) for p in critic.parameters())


@EACH
def test_critics_leave_the_global_random_stream_alone(build: Build) -> None:
    before = torch.get_rng_state()
    critic = build(3, 4, 2, generator=seeded())
    critic(torch.ones(2, 3), torch.ones(2, 4))
    assert torch.equal(torch.get_rng_state(), before)


@EACH
def test_critics_same_seed_same_parameters(build: Build) -> None:
    first, again, other = (build(3, 4, generator=seeded(seed)) for seed in (0, 0, 1))
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)
    )


@EACH
def test_critics_hold_nothing_a_host_would_touch(build: Build) -> None:
    critic = build(3, 4, generator=seeded())
    names = [*critic.state_dict()]
    assert [module for module in critic.modules() if module is not critic] == []
    assert all(isinstance(parameter, nn.Parameter) for parameter in critic.parameters())
    assert [name for name in names if "value" in name or "running_" in name] == []


@pytest.mark.parametrize("build", [BilinearCritic, SeparableMLPCritic], ids=["bilinear", "mlp"])
def test_critics_start_with_scores_of_standard_deviation_one(build: Build) -> None:
    critic = build(64, 32, generator=seeded()).double()
    scores = critic(normal(200, 64, seed=1), normal(200, 32, seed=2)).detach()
    assert float(scores.std()) == pytest.approx(1.0, abs=0.2)
    assert float(critic.temperature) == 1.0


@EACH
def test_critics_ignore_autocast(build: Build) -> None:
    critic = build(3, 4, 2, generator=seeded())
    anchors, candidates = (side.bfloat16() for side in sides(4))
    expected = critic(anchors.float(), candidates.float(), 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = critic(anchors, candidates, 1)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)


@EACH
def test_critics_keep_leading_axes_apart(build: Build) -> None:
    critic = build(3, 4, generator=seeded()).double()
    anchors, candidates = normal(2, 4, 3, seed=1), normal(2, 5, 4, seed=2)
    scores = critic(anchors, candidates)
    assert scores.shape == (2, 4, 5)
    for i in range(2):
        torch.testing.assert_close(scores[i], critic(anchors[i], candidates[i]))


@EACH
def test_critics_zero_inputs_score_zero_with_finite_gradients(build: Build) -> None:
    critic = build(3, 4, generator=seeded())
    anchors = torch.zeros(2, 3, requires_grad=True)
    candidates = torch.zeros(2, 4, requires_grad=True)
    scores = critic(anchors, candidates)
    gradients = torch.autograd.grad(info_nce(scores).sum(), (anchors, candidates))
    assert scores.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_cosine_critic_zero_anchor_has_a_tame_gradient() -> None:
    critic = CosineCritic(3, 4, generator=seeded(), temperature=0.1)
    anchors = torch.zeros(2, 3, requires_grad=True)
    losses = info_nce(critic(anchors, normal(2, 4, seed=1).float()))
    (gradient,) = torch.autograd.grad(losses.sum(), anchors)
    assert 0.0 < float(gradient.abs().max()) < 1e3


def test_cosine_critic_scores_stay_within_one_over_temperature() -> None:
    critic = CosineCritic(3, 3, generator=seeded(), temperature=0.25).double()
    with torch.no_grad():
        critic.anchor_projection[0].copy_(critic.candidate_projection)
    vectors = 100.0 * normal(6, 3, seed=1)
    scores = critic(vectors, vectors)
    assert scores.diagonal().tolist() == pytest.approx([4.0] * 6, rel=1e-6)
    assert float(scores.detach().abs().max()) <= 4.0 + 1e-5


@pytest.mark.parametrize("learn_temperature", [False, True])
def test_cosine_critic_reports_its_temperature(learn_temperature: bool) -> None:
    critic = CosineCritic(
        3, 4, generator=seeded(), temperature=0.07, learn_temperature=learn_temperature
    )
    assert float(critic.temperature) == pytest.approx(0.07)
    assert critic.temperature.shape == ()
    assert not critic.temperature.requires_grad
    assert isinstance(critic.log_scale, nn.Parameter) == learn_temperature


@pytest.mark.parametrize(("drifted", "kept"), [(9.0, math.log(100.0)), (-1.0, 0.0)])
def test_cosine_critic_clamps_the_learned_temperature(drifted: float, kept: float) -> None:
    critic = CosineCritic(3, 4, generator=seeded(), learn_temperature=True)
    anchors, candidates = (side.float() for side in sides(4, 4))
    with torch.no_grad():
        critic.log_scale.fill_(drifted)
    assert float(critic.temperature) == pytest.approx(math.exp(-kept))
    scores = critic(anchors, candidates)
    info_nce(scores).sum().backward()  # type: ignore[no-untyped-call]
    assert critic.log_scale.item() == pytest.approx(kept)
    assert critic.log_scale.grad is not None
    assert critic.log_scale.grad.item() != 0.0
    fixed = CosineCritic(3, 4, generator=seeded(), temperature=math.exp(-kept))
    torch.testing.assert_close(scores, fixed(anchors, candidates))


def test_cosine_critic_two_horizons_before_one_backward() -> None:
    critic = CosineCritic(3, 4, 2, generator=seeded(), learn_temperature=True)
    anchors, candidates = (side.float() for side in sides(4, 4))
    losses = [info_nce(critic(anchors, candidates, k)).sum() for k in range(2)]
    assert isinstance(critic.log_scale, nn.Parameter)
    separate = [
        torch.autograd.grad(loss, critic.log_scale, retain_graph=True)[0] for loss in losses
    ]
    (together,) = torch.autograd.grad(losses[0] + losses[1], critic.log_scale)
    torch.testing.assert_close(together, separate[0] + separate[1])


@EACH
@pytest.mark.parametrize(
    ("anchors", "candidates", "horizon_index", "message"),
    [
        ((2, 4), (2, 4), 0, r"`anchors` of shape \[\.\.\., B, 3\], got \(2, 4\)"),
        ((2, 3), (2, 3), 0, r"`candidates` of shape \[\.\.\., M, 4\], got \(2, 3\)"),
        ((2, 3), (2, 4), -1, "`horizon_index` .*>= 0 and <= 1, got -1"),
        ((2, 3), (2, 4), 2, "`horizon_index` .*>= 0 and <= 1, got 2"),
    ],
)
def test_critics_refuse_vectors_of_another_size_and_a_horizon_they_do_not_have(
    build: Build, anchors: Shape, candidates: Shape, horizon_index: int, message: str
) -> None:
    critic = build(3, 4, 2, generator=seeded())
    with pytest.raises(ValueError, match=message):
        critic(torch.zeros(anchors), torch.zeros(candidates), horizon_index)


@EACH
def test_critics_refuse_a_horizon_that_is_no_integer(build: Build) -> None:
    anchors, candidates = (side.float() for side in sides())
    with pytest.raises(TypeError, match=r"`horizon_index` to be an integer, got 1\.0"):
        build(3, 4, 2, generator=seeded())(anchors, candidates, 1.0)


@EACH
@pytest.mark.parametrize(
    ("own", "anchors", "candidates", "message"),
    [
        ("float32", "float64", "float64", r"`anchors` .*parameters\(\)` \(.*float32\), .*float64"),
        ("float32", "bfloat16", "float64", r"`candidates` .*\(torch.float32\), got torch.float64"),
        ("float64", "float64", "float32", r"`candidates` .*\(torch.float64\), got torch.float32"),
        ("bfloat16", "bfloat16", "bfloat16", r"critic .*float32 .*got torch.bfloat16.*\.float\(\)"),
    ],
)
def test_critics_refuse_numbers_of_another_kind(
    build: Build, own: str, anchors: str, candidates: str, message: str
) -> None:
    critic = build(3, 4, generator=seeded()).to(getattr(torch, own))
    left, right = sides()
    with pytest.raises(TypeError, match=message):
        critic(left.to(getattr(torch, anchors)), right.to(getattr(torch, candidates)))


@EACH
@pytest.mark.parametrize("name", ["anchor_dim", "candidate_dim", "n_horizons", "n_places"])
def test_critics_refuse_sizes_that_are_no_positive_integers(build: Build, name: str) -> None:
    sizes = {"anchor_dim": 3, "candidate_dim": 4, "n_horizons": 2}
    with pytest.raises(ValueError, match=rf"`{name}` to be a finite number >= 1, got 0"):
        build(**sizes | {name: 0}, generator=seeded())
    with pytest.raises(TypeError, match=rf"`{name}` to be an integer, got 4\.0"):
        build(**sizes | {name: 4.0}, generator=seeded())


NO_WIDTH = "`projection_dim` to be a finite number >= 1, got 0"
NOT_POSITIVE = "`temperature` to be a finite number > 0, got"
NOT_LEARNABLE = "`temperature` .* >= 0.01 and <= 1, got"


@pytest.mark.parametrize(
    ("build", "settings", "message"),
    [
        (SeparableMLPCritic, {"hidden_dim": 0}, "`hidden_dim` to be a finite number >= 1, got 0"),
        (SeparableMLPCritic, {"projection_dim": 0}, NO_WIDTH),
        (CosineCritic, {"projection_dim": 0}, NO_WIDTH),
        *((CosineCritic, {"temperature": t}, NOT_POSITIVE) for t in (0, -0.1, math.nan, math.inf)),
        (CosineCritic, {"temperature": 0.001, "learn_temperature": True}, NOT_LEARNABLE),
        (CosineCritic, {"temperature": 2.0, "learn_temperature": True}, NOT_LEARNABLE),
    ],
)
def test_critics_refuse_widths_and_temperatures_out_of_range(
    build: Build, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(3, 4, generator=seeded(), **settings)


@pytest.mark.parametrize("sizes", [(1, 4), (4, 1)])
def test_bilinear_critic_refuses_to_normalise_one_number(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"`candidate_dim` >= 2 with `layer_norm`"):
        BilinearCritic(*sizes, generator=seeded())
    assert BilinearCritic(*sizes, generator=seeded(), layer_norm=False).weight.shape == (1, *sizes)
