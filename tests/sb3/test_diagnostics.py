"""Spread, rank and overlap floors on cases whose answer is known."""

import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from torch import nn

from rl_infonce.networks.encoder_form import EncoderForm
from rl_infonce.sb3 import diagnostics
from rl_infonce.sb3.diagnostics import (
    dead_share,
    effective_rank,
    feature_std,
    has_collapsed,
    overlap_floors,
    pixel_floor,
    random_encoder,
    random_encoder_floor,
    vector_floor,
    without_own_observation,
)
from rl_infonce.sb3.session import LASTING, Session
from rl_infonce.sb3.update_counts import (
    DETAILS_FREQ,
    MAX_NONFINITE,
    RARE_DETAILS_FREQ,
    UpdateCounts,
)
from rl_infonce.settings import FEATURE_ACTIVATIONS
from tests.draws import seeded
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    extractors_of,
    policy_kwargs,
)


def test_features_have_collapsed_if_they_hardly_differ_whatever_their_scale() -> None:
    spread = torch.randn(50, 8, generator=seeded())
    for scale in (1e-6, 1.0, 1e6):
        assert not has_collapsed(scale * (1 + 0.01 * spread))
        assert has_collapsed(scale * (1 + 1e-4 * spread))
    assert has_collapsed(torch.zeros(50, 8))


def test_feature_std_is_the_mean_over_features() -> None:
    features = torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    assert feature_std(features).item() == pytest.approx((2.0 + 0.0) / 2)


def test_dead_features_are_the_same_for_the_whole_batch() -> None:
    features = torch.tensor([[0.0, 5.0, 0.0, 1.0], [0.0, 5.0, 1e-8, 1.0], [0.0, 5.0, 0.0, 0.0]])
    assert dead_share(features, tolerance=0.0).item() == 0.5


def test_features_that_hardly_differ_are_dead_whatever_their_scale() -> None:
    ranges = torch.tensor([1.0, 3.0, 1.9e-3, 2.1e-3, 0.0, 8.0])  # their mean is 2.0
    features = 5 + ranges * torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)[:, None]
    for scale in (1e-6, 1.0, 1e6):
        assert dead_share(scale * features).item() == pytest.approx(2 / 6)
        found = dead_share(scale * features, tolerance=2e-3).item()
        assert found == pytest.approx(3 / 6)
    assert dead_share(torch.ones(4, 3)).item() == 1.0


@pytest.mark.parametrize("name", FEATURE_ACTIVATIONS)
def test_units_without_effect_are_counted_for_every_non_linearity(name: str) -> None:
    activation = EncoderForm(feature_activation=name).head(1, 16)[1:]
    outputs = torch.randn(64, 8 if name == "crelu" else 16, generator=seeded())
    assert dead_share(activation(outputs)).item() == 0.0
    outputs[:, :4] -= 40
    # linear features only have another mean; of CReLU one half stays alive
    unhurt = name in ("linear", "average_l1")
    assert dead_share(activation(outputs)).item() == (0.0 if unhurt else 4 / 16)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_effective_rank_of_equal_directions_is_their_number(rank: int) -> None:
    directions = torch.linalg.qr(torch.randn(8, 8, generator=seeded()))[0][:rank]
    features = torch.cat([directions, -directions]) + 3.0
    assert effective_rank(features).item() == pytest.approx(rank, rel=1e-4)
    assert effective_rank(torch.ones(4, 3)).item() == pytest.approx(1.0), "no spread"


@pytest.mark.parametrize(("shift", "horizon"), [(0, 4), (1, 1), (2, 2), (3, 3)])
def test_shared_frames_betray_the_positive(shift: int, horizon: int) -> None:
    video = torch.rand(6, 8, 8, 8, generator=seeded())
    anchors, futures = video[:, :4], video[:, shift : shift + 4]
    everyone = torch.ones(6, 6, dtype=torch.bool)
    assert pixel_floor(anchors, futures, everyone, horizon).item() == 1.0


def test_unrelated_pixels_are_retrieved_by_chance() -> None:
    generator = seeded()
    floors = [
        pixel_floor(
            torch.rand(8, 4, 6, 6, generator=generator),
            torch.rand(8, 4, 6, 6, generator=generator),
            torch.ones(8, 8, dtype=torch.bool),
            4,
        )
        for _ in range(200)
    ]
    # The better of two matchers: a little above 1 / 8.
    assert 1 / 8 <= torch.stack(floors).mean().item() < 2 / 8


def test_masked_candidates_do_not_count() -> None:
    images = torch.zeros(4, 4, 8, 8)
    alone = torch.eye(4, dtype=torch.bool)
    assert pixel_floor(images, images, alone, 4).item() == 1.0
    codes = torch.randn(4, 3, generator=seeded())
    assert random_encoder_floor(codes, -codes, alone).item() == 1.0


@pytest.mark.parametrize("density", [0.4, 1.0])
def test_the_floor_of_vectors_is_the_nearest_of_them(density: float) -> None:
    rng = np.random.default_rng(0)
    found = 0.0
    for size in (2, 3, 9):
        anchors = rng.normal(size=(size, 4))
        futures = anchors + rng.normal(size=(size, 4)) / 2
        mask = (rng.random((size, size)) < density) | np.eye(size, dtype=bool)
        n_nearest = 0
        for i, anchor in enumerate(anchors):
            own = sum((anchor - futures[i]) ** 2)
            others = [sum((anchor - futures[j]) ** 2) for j in np.flatnonzero(mask[i])]
            n_nearest += own == min(others)
        floor = vector_floor(*map(torch.from_numpy, (anchors, futures, mask))).item()
        assert floor == pytest.approx(n_nearest / size)
        found += floor
    assert 0 < found < 3


def test_floors_of_vectors_do_not_find_the_anchor_itself() -> None:
    steps = torch.randn(30, 3, generator=seeded()).cumsum(dim=0)
    steps[10] = steps[9]  # a positive that equals its anchor
    anchors, futures = steps[:-1], steps[1:]
    everyone = torch.ones(29, 29, dtype=torch.bool)
    expected = [[j == i or not anchors[i].equal(futures[j]) for j in range(29)] for i in range(29)]
    left = without_own_observation(everyone, anchors, futures)
    assert left.tolist() == expected
    assert vector_floor(anchors, futures, everyone).item() < 0.1
    floors = overlap_floors(nn.Identity(), anchors, [futures], everyone[None], (1,))
    found = vector_floor(anchors, futures, left).item()
    assert floors["floor_observations_k1"] == found > 0.3
    assert floors["floor_random_k1"] == random_encoder_floor(anchors, futures, left).item()


def test_the_random_encoders_floor_is_the_cosine_of_centred_codes() -> None:
    codes = torch.randn(5, 7, generator=seeded())
    everyone = torch.ones(5, 5, dtype=torch.bool)
    assert random_encoder_floor(codes + 100, 3 * codes + 100, everyone).item() == 1.0


def test_the_random_encoder_is_frozen_and_leaves_the_original_alone() -> None:
    convolution = nn.Conv2d(4, 3, 4)
    trunk = nn.Sequential(convolution, nn.ReLU(), nn.Flatten())
    weights = convolution.weight.detach().clone()
    before = torch.get_rng_state()
    frozen = random_encoder(trunk, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(convolution.weight, weights)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not torch.equal(next(frozen.parameters()), weights)
    floors = overlap_floors(
        frozen,
        torch.rand(3, 4, 8, 8, generator=seeded()),
        [torch.rand(3, 4, 8, 8, generator=seeded(k)) for k in (1, 2)],
        torch.ones(2, 3, 3, dtype=torch.bool),
        (4, 8),
    )
    names = {f"floor_{kind}_k{k}" for kind in ("pixels", "random") for k in (4, 8)}
    assert set(floors) == names
    assert all(0 <= floor <= 1 for floor in floors.values())


def test_every_horizon_has_the_floors_of_its_own_futures() -> None:
    frozen = nn.Sequential(nn.Conv2d(4, 3, 4), nn.Flatten()).requires_grad_(False)
    anchors = torch.rand(3, 4, 8, 8, generator=seeded())
    futures = [anchors.clone(), anchors[[1, 2, 0]]]
    masks = torch.ones(2, 3, 3, dtype=torch.bool)
    floors = overlap_floors(frozen, anchors, futures, masks, (4, 8))
    assert (floors["floor_random_k4"], floors["floor_random_k8"]) == (1.0, 0.0)
    assert floors["floor_pixels_k4"] == 1.0
    assert floors["floor_pixels_k8"] < 1.0


def test_floors_see_images_that_are_not_augmented() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(preset="curl")).learn(64)
    (extractor,) = extractors_of(model)
    assert extractor.last_infonce["floor_pixels_k0"] == 1.0


def session() -> Session:
    return Session(np.random.default_rng(0))


def test_the_random_encoder_is_drawn_on_the_cpu_whose_generator_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A generator of the CPU cannot draw on a GPU."""
    events: list[str] = []

    class Trunk(nn.Linear):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            events.append(f"to {args[0]}")
            return super().to(*args, **kwargs)

    monkeypatch.setattr(diagnostics, "randomise_", lambda *_: events.append("drawn"))
    random_encoder(Trunk(2, 2), seed=0)
    assert events == ["to cpu", "drawn"]


def test_non_finite_losses_are_counted_and_warned_of_at_1_10_and_100() -> None:
    counted = UpdateCounts()
    warned = []
    for index in range(1, 301):
        counted.n_updates = index
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counted.count_finite(finite=index % 2 == 0)
        if caught:
            warned.append((index, str(caught[0].message)))
    assert [index for index, _ in warned] == [1, 19, 199]
    assert warned[1][1].startswith(
        "10 of 19 InfoNCE losses so far were NaN or infinite (1 in a row)"
    )


def test_a_finite_loss_ends_the_row() -> None:
    counted = UpdateCounts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            for _ in range(MAX_NONFINITE - 1):
                counted.count_finite(finite=False)
            counted.count_finite(finite=True)
        assert counted.n_nonfinite == 3 * (MAX_NONFINITE - 1)
        for _ in range(MAX_NONFINITE - 1):
            counted.count_finite(finite=False)
        with pytest.raises(FloatingPointError, match="100 in a row"):
            counted.count_finite(finite=False)


def test_the_logger_shows_means_over_the_updates_since_its_last_dump() -> None:
    model = ALGORITHMS["PPO"]()
    model.set_logger(Logger(folder=None, output_formats=[]))
    logging = session()
    logging.bind(model)
    for loss in (1.0, 2.0, 6.0):
        logging.log({"loss": loss}, nn.Identity())
    assert model.logger.name_to_value["infonce/loss"] == 3.0


def test_each_reason_warns_once() -> None:
    warned = session()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for reason in ("a", "b", "a", "a", "b"):
            warned.warn_once(reason, f"because of {reason}")
    assert [str(w.message) for w in caught] == ["because of a", "because of b"]


def test_another_algorithm_is_warned_of_anew() -> None:
    warned, models = session(), [ALGORITHMS["PPO"](), ALGORITHMS["PPO"]()]
    for model in models:
        warned.bind(model)
        with pytest.warns(UserWarning, match="because of a"):
            warned.warn_once("a", "because of a")


def test_what_lasts_warns_once_and_a_break_starts_the_count_again() -> None:
    warned = session()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        happens = [True] * (LASTING - 1) + [False] + [True] * (LASTING - 1)
        for each in happens:
            warned.warn_if_it_lasts("a", "of a", happens=each)
        assert not caught
        for _ in range(3 * LASTING):
            warned.warn_if_it_lasts("a", "of a", happens=True)
            warned.warn_if_it_lasts("b", "of b", happens=False)
    assert [str(w.message) for w in caught] == ["of a"]


@pytest.mark.parametrize("message", ["the InfoNCE bound is saturated", "have collapsed"])
def test_a_training_that_shows_nothing_more_is_told(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.sb3.session.LASTING", 2)
    monkeypatch.setattr("rl_infonce.sb3.update_counts.DETAILS_FREQ", 2)
    monkeypatch.setattr(
        "rl_infonce.sb3.reporting.is_saturated", lambda *_: torch.tensor("sat" in message)
    )
    monkeypatch.setattr("rl_infonce.sb3.reporting.has_collapsed", lambda _: "coll" in message)
    model = ALGORITHMS["PPO"](policy_kwargs())
    with pytest.warns(UserWarning, match=f"(?i){message}") as caught:
        model.learn(192)
    assert len(caught) == 1


def test_a_loss_without_negatives_shows_no_level_of_chance() -> None:
    model = VECTOR_ALGORITHMS["PPO"](policy_kwargs(objective="self_prediction"))
    model.learn(2 * N_STEPS)
    shown = extractors_of(model)[0].last_infonce
    assert {"loss", "accuracy_k1", "floor_observations_k1", "effective_rank"} <= shown.keys()
    assert not {"mi_lower_bound", "mi_ceiling"} & shown.keys()


def test_an_algorithm_that_is_gone_is_no_algorithm() -> None:
    watching = session()
    model = ALGORITHMS["PPO"]()
    watching.bind(model)
    assert watching.algorithm is model
    del model
    gc.collect()
    assert watching.algorithm is None
    assert watching.experience() is None
    watching.log({"loss": 1.0}, nn.Identity())


@pytest.mark.parametrize(
    ("name", "every"),
    [("details_due", DETAILS_FREQ), ("rare_details_due", RARE_DETAILS_FREQ)],
)
def test_details_are_due_once_in_a_while(name: str, every: int) -> None:
    due = [n for n in range(2 * every) if getattr(UpdateCounts(n_updates=n), name)]
    assert due == [1, 1 + every]


@pytest.mark.parametrize(
    ("name", "isolated", "n_reports"), [("PPO", False, 20), ("PPO", True, 2), ("SAC", False, 2)]
)
def test_many_updates_between_two_looks_at_the_curves_report_now_and_then(
    name: str, isolated: bool, n_reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ALGORITHMS[name](policy_kwargs(n_pairs=8, isolated=isolated))
    asked: list[str] = []
    monkeypatch.setattr(Session, "log", lambda self, numbers, extractor: asked.extend(numbers))
    extractor = extractors_of(model)[0]
    model.learn(64)
    asked.clear()
    extractor._session.counts.n_updates = 0
    experience = extractor.experience()
    assert experience is not None
    for _ in range(20):
        extractor.infonce_loss(experience)
    assert asked.count("loss") == 20
    assert asked.count("mi_lower_bound") == asked.count("n_pairs") == n_reports
