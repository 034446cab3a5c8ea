"""TemporalInfoNCE against loops written from CPC, eq. 4, and ST-DIM's two terms."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_infonce.networks.recurrent import GRUSummary
from rl_infonce.networks.transition import MLPTransition
from rl_infonce.objective import ContrastBatch, ObjectiveShape, TemporalInfoNCE, centred
from rl_infonce.presets import PRESETS, preset_settings
from rl_infonce.settings import InfoNCESettings
from tests import oracles
from tests.draws import normal, seeded

B, D, C, SIDE, HORIZONS = 5, 6, 3, 2, (4, 7)
SHAPE = ObjectiveShape(features_dim=D, local_dim=C, n_horizons=len(HORIZONS), n_places=SIDE**2)
BOTH = ("local_local", "global")
PLACES = [(y, x) for y in range(SIDE) for x in range(SIDE)]


def random_batch(
    *, length: int = 1, action_dim: int = 0, masked: bool = True, seed: int = 1
) -> ContrastBatch:
    generator = seeded(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = len(HORIZONS)
    mask = torch.rand(n, B, B, generator=generator) > (0.3 if masked else -1.0)
    mask |= torch.eye(B, dtype=torch.bool)
    return ContrastBatch(
        context=normal(B, length, D),
        context_used=torch.ones(B, length, dtype=torch.bool),
        futures=normal(n, B, D),
        mask=mask,
        actions=normal(B, max(HORIZONS), action_dim) if action_dim else None,
        anchor_maps=normal(B, C, SIDE, SIDE),
        future_maps=normal(n, B, C, SIDE, SIDE),
    )


def objective(settings: InfoNCESettings, shape: ObjectiveShape = SHAPE) -> TemporalInfoNCE:
    return TemporalInfoNCE(settings, shape, generator=seeded()).double()


def gru_of(summary: nn.Module | None) -> nn.GRU:
    """torch's own GRU with the weights of a summary."""
    assert isinstance(summary, GRUSummary)
    gru = nn.GRU(summary.weight_ih.shape[1], D, batch_first=True).double()
    gru.load_state_dict({f"{name}_l0": weight for name, weight in summary.named_parameters()})
    return gru


def loop_prediction(module: TemporalInfoNCE, batch: ContrastBatch, i: int, k: int) -> Tensor:
    """c_t of one anchor (CPC, sec. 2.2), rolled over a_t .. a_{t+k-1} with actions (CPC|A)."""
    summary = batch.context[i, -1]
    if module.past is not None:
        past = batch.context[i, batch.context_used[i]]
        summary = gru_of(module.past)(past[None])[0][0, -1]
    if module.future is not None and batch.actions is not None and k > 0:
        summary = gru_of(module.future)(batch.actions[i : i + 1, :k], summary[None, None])[1][0, 0]
    return summary


def loop_term(
    score: Callable[[Tensor, Tensor, int], Tensor],
    anchors: Tensor,
    futures: Tensor,
    mask: Tensor,
) -> float:
    """- mean over k and i of log exp s(a_i, f_i) / sum over allowed j of exp s(a_i, f_j)."""
    total = 0.0
    for k in range(len(HORIZONS)):
        mean_anchor, mean_future = anchors[k].mean(0), futures[k].mean(0)
        for i in range(B):
            scores = {
                j: float(score(anchors[k, i] - mean_anchor, futures[k, j] - mean_future, k))
                for j in range(B)
                if mask[k, i, j]
            }
            total -= scores[i] - math.log(sum(math.exp(s) for s in scores.values()))
    return total / (len(HORIZONS) * B)


def loop_loss(module: TemporalInfoNCE, batch: ContrastBatch) -> float:
    n = len(HORIZONS)
    assert batch.anchor_maps is not None
    assert batch.future_maps is not None
    total = 0.0
    for term in module.settings.terms:
        critic = module.critic(term)

        def score(
            a: Tensor, f: Tensor, k: int, *, place: Any = (), critic: nn.Module = critic
        ) -> Tensor:
            scored: Tensor = critic(a[None], f[None], k)[place]
            return scored

        of_horizons = [[loop_prediction(module, batch, i, k) for i in range(B)] for k in HORIZONS]
        whole = torch.stack([torch.stack(of_horizon) for of_horizon in of_horizons])
        if term == "global":
            total += loop_term(score, whole, batch.futures, batch.mask)
            continue
        for p, (y, x) in enumerate(PLACES):
            local = batch.anchor_maps[:, :, y, x].expand(n, B, C)
            anchors = local if term == "local_local" else whole
            future = batch.future_maps[:, :, :, y, x]
            by_place = partial(score, place=p) if term == "positional" else score
            total += loop_term(by_place, anchors, future, batch.mask) / len(PLACES)
    return total


@pytest.mark.parametrize("critic", ["bilinear", "cosine", "mlp"])
@pytest.mark.parametrize(
    "terms",
    [*((t,) for t in ("global", "global_local", "local_local", "positional")), BOTH],
    ids=" ".join,
)
def test_the_loss_equals_the_loop_over_anchors_and_places(
    terms: tuple[str, ...], critic: str
) -> None:
    module = objective(InfoNCESettings(terms=terms, critic=critic))
    batch = random_batch()
    with torch.no_grad():
        loss = float(module(batch, HORIZONS).loss.detach())
        assert loss == pytest.approx(loop_loss(module, batch), rel=1e-9)


@pytest.mark.parametrize("context", ["none", "gru"])
@pytest.mark.parametrize("action_dim", [0, 2])
def test_the_loss_of_predictions_equals_the_loop(context: str, action_dim: int) -> None:
    settings = InfoNCESettings(
        terms=("global", "global_local"),
        context=context,
        context_length=3,
        action_conditioning=action_dim > 0,
    )
    module = objective(settings, SHAPE._replace(action_dim=action_dim))
    batch = random_batch(length=3, action_dim=action_dim)
    batch.context_used[0, :2] = False
    batch.context_used[1, :1] = False
    with torch.no_grad():
        loss = float(module(batch, HORIZONS).loss)
        assert loss == pytest.approx(loop_loss(module, batch), rel=1e-9)


def test_at_horizon_0_the_prediction_is_the_summary_before_any_action() -> None:
    module = objective(
        InfoNCESettings(context="gru", action_conditioning=True), SHAPE._replace(action_dim=2)
    )
    batch = random_batch(length=3, action_dim=2)
    at_once = module.predict(batch, (0, 4))[0]
    expected = torch.stack([loop_prediction(module, batch, i, 0) for i in range(B)])
    torch.testing.assert_close(at_once, expected)


def test_equal_features_cost_log_of_the_number_of_candidates() -> None:
    batch = random_batch(masked=False)._replace(
        context=torch.ones(B, 1, D, dtype=torch.float64),
        futures=torch.ones(len(HORIZONS), B, D, dtype=torch.float64),
    )
    result = objective(InfoNCESettings())(batch, HORIZONS)
    assert float(result.loss.detach()) == pytest.approx(math.log(B))
    assert float(result.mi_lower_bound) == pytest.approx(0.0, abs=1e-9)
    assert float(result.mi_ceiling) == pytest.approx(math.log(B))


@pytest.mark.parametrize("centred", [True, False])
def test_a_shared_background_changes_nothing_once_centred(centred: bool) -> None:
    module = objective(InfoNCESettings(centred=centred))
    batch = random_batch()
    background = 100 * normal(D, seed=5)
    shifted = batch._replace(context=batch.context + background, futures=batch.futures + background)
    expected = float(module(batch, HORIZONS).loss.detach())
    found = float(module(shifted, HORIZONS).loss.detach())
    assert (found == pytest.approx(expected, rel=1e-9)) == centred


def test_centred_has_mean_zero_and_keeps_differences() -> None:
    embeddings = normal(2, B, D)
    moved = centred(embeddings)
    torch.testing.assert_close(moved.mean(dim=1), torch.zeros(2, D, dtype=torch.float64))
    torch.testing.assert_close(moved[:, 0] - moved[:, 1], embeddings[:, 0] - embeddings[:, 1])


def test_identical_anchors_and_futures_are_all_retrieved() -> None:
    module = objective(InfoNCESettings(critic="bilinear"))
    critic = module.critic("global")
    with torch.no_grad():
        critic.weight.copy_(50 * torch.eye(D).expand_as(critic.weight))  # type: ignore[operator,arg-type]
    features = normal(B, 1, D, seed=3)
    batch = random_batch(masked=False)._replace(
        context=features, futures=features[:, 0].expand(len(HORIZONS), B, D)
    )
    result = module(batch, HORIZONS)
    assert result.accuracy.tolist() == [1.0, 1.0]
    assert float(result.mi_lower_bound) == pytest.approx(math.log(B), abs=0.1)


@pytest.mark.parametrize("terms", [("global",), BOTH])
def test_a_mask_that_excludes_nothing_costs_nothing_when_that_is_known(
    terms: tuple[str, ...],
) -> None:
    module, batch = objective(InfoNCESettings(terms=terms)), random_batch(masked=False)
    looked, skipped = (
        module(batch._replace(mask_excludes=flag), HORIZONS) for flag in (True, False)
    )
    assert torch.equal(looked.loss, skipped.loss)
    parameters = list(module.critics.parameters())
    for one, other in zip(
        *(torch.autograd.grad(each.loss, parameters) for each in (looked, skipped)), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.equal(looked.accuracy, skipped.accuracy)


def test_reports_count_what_the_mask_leaves_out() -> None:
    batch = random_batch()
    result = objective(InfoNCESettings())(batch, HORIZONS)
    n_negatives = len(HORIZONS) * B * (B - 1)
    assert float(result.masked_share) == pytest.approx(int((~batch.mask).sum()) / n_negatives)
    log_n = batch.mask.sum(-1).double().log().mean()
    assert float(result.mi_ceiling) == pytest.approx(float(log_n))
    assert not result.accuracy.requires_grad


def test_the_temperature_divides_the_cosine() -> None:
    found = [
        objective(InfoNCESettings(temperature=temperature))(random_batch(), HORIZONS).scores
        for temperature in (0.1, 0.4)
    ]
    torch.testing.assert_close(found[0], 4 * found[1])


@pytest.mark.parametrize("n_symbols", [2, 4, 8])
def test_the_bound_counts_identical_candidates_that_the_loss_masks(n_symbols: int) -> None:
    """x = c, uniform on V symbols: the information is log V nats, however many candidates."""
    n, n_candidates = len(HORIZONS), 32
    symbols = torch.arange(n_candidates) % n_symbols
    features = nn.functional.one_hot(symbols).double()
    shape = ObjectiveShape(n_symbols, local_dim=C, n_horizons=n)
    module = objective(InfoNCESettings(critic="bilinear"), shape)
    weight = module.critic("global").weight
    with torch.no_grad():
        weight.copy_(100 * torch.eye(n_symbols).expand_as(weight))  # type: ignore[operator,arg-type]
    distinct = (symbols[:, None] != symbols) | torch.eye(n_candidates, dtype=torch.bool)
    batch = ContrastBatch(
        context=features[:, None],
        context_used=torch.ones(n_candidates, 1, dtype=torch.bool),
        futures=features.expand(n, n_candidates, n_symbols),
        mask=distinct.expand(n, n_candidates, n_candidates),
        time_mask=torch.ones(n_candidates, n_candidates, dtype=torch.bool),
    )
    result = module(batch, HORIZONS)
    assert float(result.mi_lower_bound) == pytest.approx(math.log(n_symbols))
    assert float(result.mi_ceiling) == pytest.approx(math.log(n_candidates))
    assert float(result.loss.detach()) == pytest.approx(0.0, abs=1e-9), "the loss masks copies"
    n_copies = n_candidates // n_symbols - 1
    assert float(result.masked_share) == pytest.approx(n_copies / (n_candidates - 1))
    assert result.accuracy.tolist() == [1.0] * n


@pytest.mark.parametrize("terms", [("global",), BOTH])
def test_the_mask_of_time_changes_the_bound_alone(terms: tuple[str, ...]) -> None:
    module = objective(InfoNCESettings(terms=terms, critic="bilinear"))
    batch = random_batch()
    time_mask = torch.rand(B, B, generator=seeded(7)) > 0.3
    time_mask |= torch.eye(B, dtype=torch.bool)
    without, with_it = (module(b, HORIZONS) for b in (batch, batch._replace(time_mask=time_mask)))
    for name in ("loss", "accuracy", "masked_share"):
        assert torch.equal(getattr(without, name), getattr(with_it, name)), name
    places = loop_scores(module, batch, terms[0]).flatten(0, 1).tolist()
    bounds = [oracles.info_nce_bound(place, time_mask.tolist()) for place in places]
    assert float(with_it.mi_lower_bound) == pytest.approx(sum(bounds) / len(bounds))
    log_n = time_mask.sum(-1).double().log().mean()
    assert float(with_it.mi_ceiling) == pytest.approx(float(log_n))
    assert not torch.equal(without.mi_lower_bound, with_it.mi_lower_bound)


def loop_scores(module: TemporalInfoNCE, batch: ContrastBatch, term: str) -> Tensor:
    """[K, P, B, B] scores of a term without context or actions; one place if it is global."""
    assert batch.anchor_maps is not None
    assert batch.future_maps is not None
    critic = module.critic(term)
    rows = []
    for k in range(len(HORIZONS)):
        if term == "global":
            sides = [(batch.context[:, -1], batch.futures[k])]
        else:
            sides = [
                (batch.anchor_maps[:, :, y, x], batch.future_maps[k, :, :, y, x]) for y, x in PLACES
            ]
        rows.append(torch.stack([critic(a - a.mean(0), f - f.mean(0), k) for a, f in sides]))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("terms", [("global", "local_local"), BOTH])
def test_accuracy_and_bound_are_those_of_the_first_terms_masked_scores(
    terms: tuple[str, ...],
) -> None:
    module = objective(InfoNCESettings(terms=terms, critic="bilinear"))
    batch = random_batch()
    result = module(batch, HORIZONS)
    scores = loop_scores(module, batch, terms[0])
    bounds = []
    for k in range(len(HORIZONS)):
        mask = batch.mask[k].tolist()
        places = scores[k].tolist()
        found = [oracles.retrieval_accuracy(place, mask) for place in places]
        expected = sum(map(sum, found)) / (len(places) * B)
        assert float(result.accuracy[k]) == pytest.approx(expected)
        assert 0 < expected < 1
        bounds += [oracles.info_nce_bound(place, mask) for place in places]
    assert float(result.mi_lower_bound) == pytest.approx(sum(bounds) / len(bounds))


def test_one_anchor_alone_costs_nothing_and_has_no_negative_to_mask() -> None:
    batch = random_batch()
    alone = ContrastBatch(
        batch.context[:1], batch.context_used[:1], batch.futures[:, :1], batch.mask[:, :1, :1]
    )
    result = objective(InfoNCESettings())(alone, HORIZONS)
    assert float(result.loss.detach()) == 0.0
    assert float(result.masked_share) == 0.0


def test_actions_reach_the_prediction_of_their_own_horizon_only() -> None:
    module = objective(InfoNCESettings(action_conditioning=True), SHAPE._replace(action_dim=2))
    batch = random_batch(action_dim=2)
    assert batch.actions is not None
    later = batch.actions.clone()
    later[:, HORIZONS[0] :] += 1.0  # a_{t+4} .. a_{t+6}: after the first horizon's future
    before = module.predict(batch, HORIZONS)
    after = module.predict(batch._replace(actions=later), HORIZONS)
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_the_context_sees_the_past_but_not_before_the_episode_began() -> None:
    module = objective(InfoNCESettings(context="gru"))
    batch = random_batch(length=3)
    used = batch.context_used.clone()
    used[0, :2] = False
    batch = batch._replace(context_used=used)
    past = batch.context.clone()
    past[:, 0] += 1.0
    before = module.predict(batch, HORIZONS)
    after = module.predict(batch._replace(context=past), HORIZONS)
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.isclose(before[:, 1:], after[:, 1:]).all(-1).any()


@pytest.mark.parametrize(
    "settings",
    [*PRESETS.values(), replace(PRESETS["cpc"], context="gru")],
    ids=[*PRESETS, "gru"],
)
def test_every_parameter_gets_a_gradient(settings: InfoNCESettings) -> None:
    settings = replace(settings, action_conditioning=True)
    module = objective(settings, SHAPE._replace(action_dim=2))
    length = 3 if settings.context == "gru" else 1
    module(random_batch(length=length, action_dim=2), HORIZONS).loss.backward()
    silent = {n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()}
    without_prediction = not any("global" in term for term in settings.terms)
    assert {n for n in silent if not (without_prediction and n.startswith("future"))} == set()
    if settings.context == "gru":
        names = {name for name, _ in module.named_parameters()}
        assert {"past.weight_hh", "future.weight_ih"} <= names


SIDES = ("context", "futures", "future_maps")


@pytest.mark.parametrize(
    ("terms", "context", "inputs"),
    [
        (("global",), "gru", ("context", "actions")),
        pytest.param(("global",), "none", SIDES, marks=pytest.mark.slow),
        pytest.param(("global_local", "local_local"), "none", SIDES, marks=pytest.mark.slow),
    ],
)
def test_gradients_agree_with_finite_differences(
    terms: tuple[str, ...], context: str, inputs: tuple[str, ...]
) -> None:
    settings = InfoNCESettings(terms=terms, critic="bilinear", context=context)
    action_dim = 2 * ("actions" in inputs)
    module = objective(settings, SHAPE._replace(action_dim=action_dim))
    batch = random_batch(length=2, action_dim=action_dim)

    def loss(*given: Tensor) -> Tensor:
        changes: dict[str, Any] = dict(zip(inputs, given, strict=True))
        result: Tensor = module(batch._replace(**changes), HORIZONS).loss
        return result

    leaves = [getattr(batch, name).clone().requires_grad_() for name in inputs]
    assert torch.autograd.gradcheck(loss, leaves)


def test_weights_depend_on_the_generator_alone() -> None:
    before = torch.get_rng_state()
    settings = InfoNCESettings(context="gru")
    first, second, other = (
        TemporalInfoNCE(settings, SHAPE, generator=seeded(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
    assert any(not torch.equal(w, other.state_dict()[n]) for n, w in first.state_dict().items())


def test_local_terms_without_maps_are_refused() -> None:
    module, batch = objective(InfoNCESettings(terms=("local_local",))), random_batch()
    with pytest.raises(ValueError, match=r"`batch`.*maps.*local_local"):
        module(batch._replace(future_maps=None), HORIZONS)


def loop_transition(module: TemporalInfoNCE, features: Tensor, actions: Tensor) -> Tensor:
    """z_{t+1} = g(z_t, a_t) for each action: two hidden layers of x if x > 0 else exp(x) - 1."""
    transition = module.future
    assert isinstance(transition, MLPTransition)
    for action in actions:
        values = torch.cat([features, action])
        for index, (weight, bias) in enumerate(
            zip(transition.weights, transition.biases, strict=True)
        ):
            if index:
                values = torch.where(values > 0, values, torch.exp(values) - 1)
            values = (weight * values).sum(1) + bias
        features = values
    return features


@pytest.mark.parametrize("action_dim", [0, 2])
def test_self_prediction_is_one_minus_the_cosine_of_rolled_features(action_dim: int) -> None:
    """Schwarzer et al. 2021, eqs. 2 and 5, with a mean over horizons and anchors, plus one."""
    settings = InfoNCESettings(
        objective="self_prediction", action_conditioning=action_dim > 0, centred=False
    )
    module = objective(settings, SHAPE._replace(action_dim=action_dim))
    batch = random_batch(action_dim=action_dim)
    actions = torch.zeros(B, max(HORIZONS), 0) if batch.actions is None else batch.actions
    total = 0.0
    for k, horizon in enumerate(HORIZONS):
        for i in range(B):
            predicted = loop_transition(module, batch.context[i, -1], actions[i, :horizon]).detach()
            true = batch.futures[k, i]
            norms = math.sqrt(float((predicted**2).sum()) * float((true**2).sum()))
            total += 1.0 - float((predicted * true).sum()) / norms
    loss = float(module(batch, HORIZONS).loss.detach())
    assert loss == pytest.approx(total / (len(HORIZONS) * B), rel=1e-9)


def test_self_prediction_leaves_the_futures_without_a_gradient_and_reports_retrieval() -> None:
    module = objective(InfoNCESettings(objective="self_prediction"))
    batch = random_batch(masked=False)
    futures = batch.futures.clone().requires_grad_()
    context = batch.context.clone().requires_grad_()
    result = module(batch._replace(futures=futures, context=context), HORIZONS)
    result.loss.backward()
    assert futures.grad is None
    assert context.grad is not None
    assert context.grad.any()
    predictions = module.predict(batch, HORIZONS).detach()
    expected = []
    for k in range(len(HORIZONS)):
        scores = [
            [float(torch.cosine_similarity(p, f, dim=0)) for f in batch.futures[k]]
            for p in predictions[k]
        ]
        expected.append(sum(oracles.retrieval_accuracy(scores)) / B)
    assert result.accuracy.tolist() == pytest.approx(expected)


def test_infonce_contrasts_what_the_network_has_rolled_forward() -> None:
    settings = InfoNCESettings(predictor="mlp", action_conditioning=True, centred=False)
    module = objective(settings, SHAPE._replace(action_dim=2))
    batch = random_batch(action_dim=2)
    assert batch.actions is not None
    predictions = module.predict(batch, HORIZONS).detach()
    for k, horizon in enumerate(HORIZONS):
        for i in range(B):
            state = batch.context[i, -1]
            rolled = loop_transition(module, state, batch.actions[i, :horizon]).detach()
            torch.testing.assert_close(predictions[k, i], rolled)
    scores = [module.critic("global")(predictions[k], batch.futures[k], k) for k in (0, 1)]
    expected = [
        sum(oracles.info_nce(s.tolist(), m.tolist())) / B
        for s, m in zip(scores, batch.mask, strict=True)
    ]
    loss = float(module(batch, HORIZONS).loss.detach())
    assert loss == pytest.approx(sum(expected) / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "self_prediction", "predictor": "none"}, "`predictor` to be gru or mlp"),
        ({"action_conditioning": True, "predictor": "none"}, "`predictor` to be gru or mlp"),
        ({"objective": "self_prediction", "terms": ("local_local",)}, "`terms`"),
        ({"objective": "self_prediction", "critic": "mlp"}, "`critic` with objective='infonce'"),
        ({"objective": "self_prediction", "centred": False}, "`centred` with objective='infonce'"),
        (
            {"objective": "self_prediction", "temperature": 0.2},
            "`temperature` with objective='infonce'",
        ),
        (
            {"terms": ("local_local",), "action_conditioning": True},
            "`action_conditioning`=True with",
        ),
        ({"terms": ("local_local",), "predictor": "gru"}, "`predictor`='gru' with a term"),
    ],
)
def test_settings_that_predict_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset_settings("cpc", settings)


@pytest.mark.parametrize(
    "settings",
    [{"objective": "self_prediction"}, {"predictor": "mlp"}, {"action_conditioning": True}],
)
def test_nothing_is_rolled_forward_between_two_views_of_one_image(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`horizons` above 0 where features are rolled forward"):
        preset_settings("curl", settings)
    assert preset_settings("curl", {**settings, "horizons": (0, 4)}).horizons == (0, 4)
