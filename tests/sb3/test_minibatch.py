"""Pairs of the minibatch that RL encodes anyway: which they are, and what gradient they give."""

import math
import warnings
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from torch.nn import functional

from rl_infonce import InfoNCECallback
from rl_infonce.sb3.batch_encoding import preprocess
from rl_infonce.sb3.binding import current_samples
from rl_infonce.sb3.minibatch import MinibatchPairs
from rl_infonce.sb3.session import Session
from rl_infonce.sb3.updates import find_pairs
from rl_infonce.temporal import BoolArray
from tests.further import further
from tests.sb3.fakes import (
    IMAGE_SHAPE,
    Stamp,
    StampedEnv,
    decode,
    encode,
    stamped_vec_env,
)
from tests.sb3.test_gradients import Gradients, first_gradients, gradients_of
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    n_updates,
    policy_kwargs,
    record_logger,
)

HORIZON = 4
MIN_GAP = 3


def kwargs_of(**settings: Any) -> dict[str, Any]:
    return policy_kwargs(
        **{"horizons": (HORIZON,), "min_gap": MIN_GAP, "pairs_from": "minibatch", **settings}
    )


class Found(NamedTuple):
    """Pairs of a minibatch, and what SB3 held at that time."""

    pairs: MinibatchPairs | None
    rows: Stamp
    recorded: set[tuple[int, int, int]]
    observed: Any


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    """A list that grows by one entry per minibatch."""
    entries: list[Found] = []

    def recording(experience: Any, plan: Any, session: Any, encoded: Any) -> MinibatchPairs | None:
        pairs = find_pairs(experience, plan, session, encoded)
        (minibatch,) = current_samples(session.algorithm)
        buffer = getattr(session.algorithm, "rollout_buffer", None)
        if buffer is None:
            buffer = session.algorithm.replay_buffer
            n_filled = buffer.buffer_size if buffer.full else buffer.pos
            stamps = decode(buffer.observations[:n_filled])
        else:
            stamps = decode(buffer.observations)
        cells = {*zip(*(each.ravel().tolist() for each in stamps), strict=True)}
        observed = None if pairs is None else pairs.observed  # before rows are overwritten
        entries.append(Found(pairs, decode(minibatch.observations.numpy()), cells, observed))
        return pairs

    monkeypatch.setattr("rl_infonce.sb3.extractor.find_pairs", recording)
    return entries


def stamps_at(rows: Stamp, chosen: Any) -> list[tuple[int, int, int]]:
    return [*zip(*(each[chosen].tolist() for each in rows), strict=True)]


def later(stamp: tuple[int, int, int], steps: int) -> tuple[int, int, int]:
    return (*stamp[:2], stamp[2] + steps)


def expected_mask(
    anchors: list[tuple[int, int, int]], candidates: list[tuple[int, int, int]]
) -> BoolArray:
    def takes_part(i: int, j: int) -> bool:
        anchor, candidate = anchors[i], candidates[j]
        same_episode = anchor[:2] == candidate[:2]
        gap = abs(candidate[2] - HORIZON - anchor[2])
        return i == j or not (same_episode and (gap < MIN_GAP or candidate == anchor))

    return np.array(
        [[takes_part(i, j) for j in range(len(candidates))] for i in range(len(anchors))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_pairs", [2, 16])
@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", *map(further, ("MaskablePPO", "SAC"))])
def test_the_pairs_of_a_minibatch_equal_brute_force(
    name: str, n_pairs: int, found: list[Found]
) -> None:
    changes: dict[str, Any] = {}
    if name in ("DQN", "SAC"):
        changes["buffer_size"] = 90  # which goes round
    if name == "DQN" and n_pairs == 2:
        changes |= {
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
        }
    model = ALGORITHMS[name](kwargs_of(n_pairs=n_pairs), **changes).learn(2 * N_STEPS)
    assert len(found) == model._n_updates * (1 if name in ("A2C", "DQN") else 2)
    for pairs, rows, recorded, observed in found:
        minibatch = [*dict.fromkeys(stamps_at(rows, slice(None)))]  # replays may repeat a row
        everywhere = {each for each in minibatch if later(each, HORIZON) in recorded}
        inside = {each for each in everywhere if later(each, HORIZON) in minibatch}
        n_more = max(min(n_pairs, len(everywhere)) - len(inside), 0)
        n_more = 0 if n_more == 1 else n_more  # one future alone is not encoded
        if pairs is None:
            assert len(inside) + n_more < 2
            continue
        anchors = stamps_at(rows, pairs.anchors)
        n_inside = len(pairs.futures)
        assert len({*anchors}) == len(anchors)
        assert {*anchors[:n_inside]} == inside
        assert {*anchors[n_inside:]} <= everywhere - inside
        assert len(anchors) == len(inside) + n_more
        missing = decode(pairs.missing)
        futures = stamps_at(rows, pairs.futures) + stamps_at(missing, slice(None))
        assert futures == [later(each, HORIZON) for each in anchors]
        others = stamps_at(rows, pairs.others)
        of_episodes = {each for each in minibatch if later(each, -HORIZON) in recorded}
        assert {*others} == of_episodes - {*futures}
        assert np.array_equal(pairs.time_mask, expected_mask(anchors, futures + others))
        assert np.array_equal(pairs.mask, pairs.time_mask)  # no two images are equal
        first, second = observed
        assert stamps_at(decode(first), slice(None)) == anchors
        assert stamps_at(decode(second[0]), slice(None)) == futures + others


@pytest.mark.slow
def test_shuffled_pairs_are_the_futures_of_other_anchors(found: list[Found]) -> None:
    ALGORITHMS["PPO"](kwargs_of(positives="shuffled")).learn(N_STEPS)
    for pairs, rows, _, _ in found:
        assert pairs is not None
        anchors = stamps_at(rows, pairs.anchors)
        futures = [later(anchors[other], HORIZON) for other in pairs.order]
        assert sorted(pairs.order.tolist()) == [*range(len(anchors))]
        assert all(pairs.order != np.arange(len(anchors)))
        candidates = stamps_at(decode(pairs.observed[1][0]), slice(None))
        assert candidates[: len(anchors)] == futures
        for (i, anchor), (j, candidate) in product(enumerate(anchors), enumerate(candidates)):
            left_out = i != j and candidate in (anchor, later(anchor, HORIZON))
            assert pairs.time_mask[i, j] != left_out


def loop_loss(extractor: Any, pairs: MinibatchPairs) -> torch.Tensor:
    """Return the InfoNCE loss of pairs, encoded one by one and scored in loops."""

    def features(images: Any) -> torch.Tensor:
        tensors = preprocess(torch.as_tensor(images), extractor._observation_space)
        encoded = torch.cat([extractor.encoder.encode(each[None]).features for each in tensors])
        return encoded - encoded.mean(dim=0)

    anchors, candidates = features(pairs.observed[0]), features(pairs.observed[1][0])
    if extractor.settings.stops_gradient:
        candidates = candidates.detach()
    critic = extractor.infonce.critic("global")
    anchors = anchors @ critic.anchor_projection[0]
    candidates = candidates @ critic.candidate_projection
    losses = []
    for i, anchor in enumerate(anchors):
        allowed = [j for j in range(len(candidates)) if pairs.mask[i, j]]
        scores = torch.stack(
            [functional.cosine_similarity(anchor, candidates[j], dim=0) / 0.1 for j in allowed]
        )
        losses.append(scores.logsumexp(dim=0) - scores[allowed.index(i)])
    return torch.stack(losses).mean()


@pytest.fixture(params=[True, False], ids=["compared", "carried"])
def rare_details_due(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether every update reports what costs extra time, or none does."""
    due = bool(request.param)
    set_rare_details_due(monkeypatch, due)
    return due


def set_rare_details_due(monkeypatch: pytest.MonkeyPatch, due: bool) -> None:
    for name in ("rare_details_due", "next_rare_details_due"):
        monkeypatch.setattr(f"rl_infonce.sb3.update_counts.UpdateCounts.{name}", due)


def build(name: str, coef: float, **settings: Any) -> tuple[BaseAlgorithm, torch.optim.Optimizer]:
    kwargs = kwargs_of(infonce_coef=coef, **settings)
    model = ALGORITHMS[name](kwargs, max_grad_norm=1e9)
    policy: Any = model.policy
    return model, policy.optimizer


@pytest.mark.slow
@pytest.mark.usefixtures("rare_details_due")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PPO", {"n_pairs": 2}),
        ("PPO", {"n_pairs": 30}),
        ("PPO", {"n_pairs": 30, "positives": "shuffled"}),
        ("PPO", {"n_pairs": 30, "target_encoder_tau": 1.0}),
        ("DQN", {"n_pairs": 10}),
        further("A2C", {"n_pairs": 2}),
    ],
)
def test_the_gradient_is_rls_plus_that_of_a_plain_loop(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    coef = 2.5
    host = first_gradients(*build(name, 0.0))
    model, optimizer = build(name, coef, **settings)
    (extractor,) = extractors_of(model)
    place = next(n for n, module in model.policy.named_modules() if module is extractor)
    auxiliary: list[Gradients] = []
    original = type(extractor)._gradients_of

    def recording(self: Any, pairs: MinibatchPairs, *encoded: Any) -> Any:
        if not auxiliary:
            assert (len(pairs.missing) > 0) == (settings["n_pairs"] > 2)
            auxiliary.append(gradients_of(loop_loss(self, pairs), self))
        return original(self, pairs, *encoded)

    monkeypatch.setattr(type(extractor), "_gradients_of", recording)
    both = first_gradients(model, optimizer)
    checked = 0
    # Centred features hardly depend on the last bias: all that is left of its gradient is rounding.
    whole = coef * torch.cat([each.flatten() for each in auxiliary[0].values()]).norm()
    for name_of, own in auxiliary[0].items():
        entry = f"{place}.{name_of}"
        expected = host.get(entry, torch.zeros(())) + coef * own
        assert (both[entry] - expected).norm() <= 1e-4 * expected.norm() + 1e-5 * whole
        checked += bool((coef * own).abs().max() > 1e-6)
    assert checked == len(auxiliary[0]) >= 10


SETTINGS: list[dict[str, Any]] = [
    {"terms": ["global_local", "local_local"]},
    {"preset": "positional_cpc"},
    {"action_conditioning": True},
    {"target_encoder_tau": 1.0},
    {"objective": "self_prediction"},
    {"critic": "bilinear", "positives": "shuffled"},
    {"precision": "bf16"},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: "-".join(map(str, each.values())))
def test_gradients_are_the_same_whether_compared_or_carried(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradients(*, due: bool) -> Gradients:
        set_rare_details_due(monkeypatch, due)
        return first_gradients(*build("PPO", 1.0, **settings))

    compared, carried = gradients(due=True), gradients(due=False)
    assert compared.keys() == carried.keys()
    rounding = 2e-2 if settings.get("precision") == "bf16" else 1e-4
    for name, gradient in compared.items():
        assert (gradient - carried[name]).norm() <= rounding * gradient.norm() + 1e-7


@pytest.mark.slow
@pytest.mark.usefixtures("rare_details_due")
def test_the_bound_holds_for_what_the_minibatch_carries() -> None:
    host = first_gradients(*build("PPO", 0.0))
    bounded = first_gradients(*build("PPO", 100.0, max_grad_ratio=0.5))
    of_encoder = [n for n in host if ".cnn." in n or ".linear." in n]
    both, plain = (torch.cat([found[n].flatten() for n in of_encoder]) for found in (bounded, host))
    torch.testing.assert_close((both - plain).norm(), 0.5 * plain.norm(), rtol=1e-3, atol=0)


def test_what_costs_time_beside_a_whole_minibatch_is_reported_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_infonce.sb3.update_counts.RARE_DETAILS_FREQ", 32)
    reported: list[str] = []
    monkeypatch.setattr(Session, "log", lambda self, numbers, extractor: reported.extend(numbers))
    model = ALGORITHMS["PPO"](kwargs_of(isolated=False))
    model.learn(8 * N_STEPS)
    n_made = n_updates(model)
    assert n_made > 32
    for name, every in (("loss", 1), ("mi_lower_bound", 4), ("dead_features", 16)):
        assert reported.count(name) == math.ceil(n_made / every), name
    for name in ("floor_pixels_k4", "grad_norm_rl"):
        assert reported.count(name) == math.ceil(n_made / 32), name


@pytest.mark.slow
@pytest.mark.parametrize("builds", [ALGORITHMS, VECTOR_ALGORITHMS], ids=["images", "vectors"])
def test_the_loss_learns_from_minibatches_and_says_so(builds: Any) -> None:
    model = builds["PPO"](kwargs_of(isolated=False, infonce_coef=1.0))
    logged = record_logger(model)
    model.learn(5 * N_STEPS)
    model.logger.dump()
    (extractor,) = extractors_of(model)
    assert extractor.last_infonce["n_pairs"] >= 16
    assert extractor.last_infonce["grad_norm_infonce"] > 0
    assert 0 < logged["infonce/loss"][0] < logged["infonce/mi_ceiling"][0] + 1


@pytest.mark.slow
def test_separate_encoders_have_pairs_of_their_own(found: list[Found]) -> None:
    kwargs = kwargs_of() | {"share_features_extractor": False}
    model = ALGORITHMS["PPO"](kwargs).learn(64)
    assert len(extractors_of(model)) == 2
    assert len(found) == 2 * 2 * 2  # epochs, minibatches, encoders
    assert all(each.pairs is not None for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CrossQ", "RecurrentPPO"])
def test_minibatches_that_cannot_serve_leave_pairs_to_the_buffer(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = ALGORITHMS[name](kwargs_of(n_pairs=8)).learn(N_STEPS)
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 8


class SlowEnv(StampedEnv):
    """Shows an image for three steps."""

    def observation(self) -> Any:
        return encode(self.env, self.episode, self.time // 3)


@pytest.mark.slow
def test_candidates_equal_to_the_positive_are_left_out_in_every_rollout(
    found: list[Found],
) -> None:
    env = stamped_vec_env(2, SlowEnv, lengths=(9, 15))
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    PPO("CnnPolicy", env, policy_kwargs=kwargs_of(min_gap=0), seed=0, **sizes).learn(3 * 64)
    for pairs, *_ in found:
        assert pairs is not None
        candidates = [each.tobytes() for each in pairs.observed[1][0]]
        n_anchors = len(pairs.anchors)
        assert not pairs.mask.all()
        for i, j in product(range(n_anchors), range(len(candidates))):
            equal = i != j and candidates[i] == candidates[j]
            assert pairs.mask[i, j] == (pairs.time_mask[i, j] and not equal)


class BlindEnv(StampedEnv):
    """Shows the same image always."""

    def observation(self) -> Any:
        return np.zeros(IMAGE_SHAPE, dtype=np.uint8)


@pytest.mark.slow
def test_identical_images_have_no_negatives() -> None:
    env = stamped_vec_env(2, BlindEnv, lengths=(9, 15))
    sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    model = PPO("CnnPolicy", env, policy_kwargs=kwargs_of(), seed=0, **sizes)
    model.learn(64)
    numbers = extractors_of(model)[0].last_infonce
    assert numbers["loss"] == 0
    assert numbers["masked_share"] == 1  # also where their rows cannot be told apart


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 4])
def test_a_minibatch_of_too_few_pairs_is_left_to_the_buffer(
    batch_size: int, found: list[Found]
) -> None:
    model = ALGORITHMS["PPO"](kwargs_of(n_pairs=8), batch_size=batch_size, n_epochs=1)
    model.learn(64)
    assert {each.pairs is None for each in found} == {True, False}
    assert all(np.isfinite(each).all() for each in extractors_of(model)[0].last_infonce.values())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read by torch._dynamo
def test_a_compiled_encoder_carries_and_compares_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd donates the buffers of a graph whose first backward does not keep it."""
    monkeypatch.setattr("rl_infonce.sb3.update_counts.RARE_DETAILS_FREQ", 3)
    model = ALGORITHMS["PPO"](kwargs_of(), n_epochs=4)
    (extractor,) = extractors_of(model)
    extractor.compile(backend="aot_eager")
    model.learn(2 * 64)
    assert n_updates(model) == 2 * 2 * 4
    assert extractor.last_infonce["grad_norm_infonce"] > 0


def test_decoupled_updates_refuse_pairs_of_minibatches() -> None:
    model = ALGORITHMS["PPO"](kwargs_of())
    with pytest.raises(ValueError, match="`pairs_from` 'buffer' with decoupled updates"):
        model.learn(64, callback=InfoNCECallback(decoupled=True))


@pytest.mark.slow
def test_at_coefficient_0_it_is_the_plain_network() -> None:
    plain = ALGORITHMS["PPO"](policy_kwargs(infonce_coef=0.0)).learn(N_STEPS)
    other = ALGORITHMS["PPO"](kwargs_of(infonce_coef=0.0)).learn(N_STEPS)
    assert_same_weights(plain.policy, other.policy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("horizons", (1, 4)),
        ("context", "gru"),
        ("augmentation", "random_shift"),
        ("augment_observations", True),
        ("target_encoder_tau", 0.01),
        ("isolated", True),
        ("auto_bind", False),
    ],
)
def test_what_needs_other_observations_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`pairs_from` 'buffer' with {name}=.*RL encodes"):
        ALGORITHMS["PPO"](kwargs_of(**{name: value}))
