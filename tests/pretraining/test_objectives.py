"""Every loss against loops written from the papers' equations."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import (
    OBJECTIVES,
    EpisodeFrames,
    FrameBatch,
    PretrainingObjective,
    make_objective,
)
from rl_infonce.pretraining.cpc import CPC
from rl_infonce.pretraining.generative import screen_decoder
from rl_infonce.pretraining.global_infonce import GlobalInfoNCE
from rl_infonce.pretraining.objectives import paints_screens
from rl_infonce.pretraining.positional import PositionalDIM
from rl_infonce.pretraining.spatial import JSDSpatioTemporalDIM, SpatioTemporalDIM, StaticDIM
from rl_infonce.pretraining.supervised import Supervised
from tests.draws import seeded

N_FRAMES = {"cpc": 100, "jsd_stdim": 3} | dict.fromkeys(
    ("stdim", "positional_dim", "infonce", "pixel_pred"), 2
)


def encoder() -> STDIMEncoder:
    return STDIMEncoder(seeded())


def build(name: str) -> PretrainingObjective:
    variables = ("x", "y") if name == "supervised" else ()
    return make_objective(name, encoder(), seeded(), variables=variables)


def no_images(n_samples: int) -> FrameBatch:
    return FrameBatch(torch.zeros(n_samples, 1, 1, 210, 160, dtype=torch.uint8))


def frames(n_frames: int = 240, episode_length: int = 120) -> EpisodeFrames:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n_frames, 1, 210, 160), dtype=np.uint8)
    ids = np.arange(n_frames) // episode_length
    labels = {name: rng.integers(0, 256, n_frames) for name in ("x", "y")}
    return EpisodeFrames(images, ids, np.arange(n_frames), labels)


def picks(prediction: Tensor, candidates: list[Tensor], positive: int) -> float:
    """Return -log of the share that the positive has of all exponentiated inner products."""
    scores = [float(prediction.double() @ candidate.double()) for candidate in candidates]
    return -scores[positive] + math.log(sum(math.exp(score) for score in scores))


def tiny(n_samples: int, n_frames: int, places: tuple[int, int] = (2, 3)) -> tuple[Tensor, Tensor]:
    features = torch.randn(n_samples, n_frames, 256, generator=seeded(1))
    maps = torch.randn(n_samples, n_frames, 128, *places, generator=seeded(2)) / 4
    return features, maps


def value(objective: PretrainingObjective, encoded: tuple[Tensor, ...], batch: FrameBatch) -> float:
    with torch.no_grad():
        return float(objective.loss(encoded, batch).loss)


def affine(layer: Any, vector: Tensor) -> Tensor:
    result: Tensor = layer.weight.detach() @ vector + layer.bias.detach()
    return result


def test_stdim_is_the_sum_of_its_two_terms() -> None:
    objective = SpatioTemporalDIM(encoder(), seeded())
    features, maps = tiny(3, 2)
    expected = 0.0
    for y, x in np.ndindex(2, 3):
        before = [maps[j, 0, :, y, x] for j in range(3)]
        for i in range(3):
            expected += picks(affine(objective.from_features, features[i, 1]), before, i) / 18
            expected += picks(affine(objective.from_map, maps[i, 1, :, y, x]), before, i) / 18
    assert value(objective, (features, maps), no_images(3)) == pytest.approx(expected, rel=1e-5)


def test_positional_dim_is_stdim_with_a_predictor_per_place() -> None:
    objective = PositionalDIM(encoder(), seeded())
    features, maps = tiny(3, 2, places=(11, 8))
    layer = objective.from_features
    expected = 0.0
    for place, (y, x) in enumerate(np.ndindex(11, 8)):
        before = [maps[j, 0, :, y, x] for j in range(3)]
        own = slice(128 * place, 128 * (place + 1))
        for i in range(3):
            predicted = layer.weight.detach()[own] @ features[i, 1] + layer.bias.detach()[own]
            expected += picks(predicted, before, i) / 3 / 88
            expected += picks(affine(objective.from_map, maps[i, 1, :, y, x]), before, i) / 3 / 88
    assert value(objective, (features, maps), no_images(3)) == pytest.approx(expected, rel=1e-5)


def test_static_dim_looks_at_one_frame() -> None:
    objective = StaticDIM(encoder(), seeded())
    features, maps = tiny(3, 1)
    expected = 0.0
    for y, x in np.ndindex(2, 3):
        same = [maps[j, 0, :, y, x] for j in range(3)]
        for i in range(3):
            expected += picks(affine(objective.from_features, features[i, 0]), same, i) / 18
    assert value(objective, (features, maps), no_images(3)) == pytest.approx(expected, rel=1e-5)


def test_jsd_stdim_answers_yes_or_no() -> None:
    objective = JSDSpatioTemporalDIM(encoder(), seeded())
    features, maps = tiny(3, 3)

    def cross_entropy(score: float, is_positive: bool) -> float:
        probability = 1 / (1 + math.exp(-score))
        return -math.log(probability if is_positive else 1 - probability)

    expected = 0.0
    for i, (y, x) in ((i, place) for i in range(3) for place in np.ndindex(2, 3)):
        for prediction in (
            affine(objective.from_features, features[i, 1]),
            affine(objective.from_map, maps[i, 1, :, y, x]),
        ):
            positive = float(prediction @ maps[i, 0, :, y, x])
            negative = float(prediction @ maps[i, 2, :, y, x])
            terms = cross_entropy(positive, True) + cross_entropy(negative, False)
            expected += terms / 2 / 18
    assert value(objective, (features, maps), no_images(3)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["stdim", "jsd_stdim"])
def test_the_accuracy_is_that_of_the_features_not_of_the_maps(name: str) -> None:
    objective: Any = build(name)
    maps = torch.zeros(3, 3, 128, 2, 3)
    maps[range(3), :2, range(3)] = 5.0  # every sample has a channel of its own, now as before
    maps[range(3), 2, range(3, 6)] = 5.0
    features = torch.zeros(3, 3, 256)
    with torch.no_grad():
        for layer in (objective.from_features, objective.from_map):
            layer.bias.zero_()
            layer.weight.copy_(torch.eye(*layer.weight.shape))
        objective.from_map.weight[:, 3:6] = 0
        objective.from_map.weight[range(3, 6), range(3)] = -1
        silent = objective.loss((features, maps), no_images(3)).accuracy
        features[range(3), 1, range(3)] = 1.0
        features[range(3), 1, range(3, 6)] = -1.0
        telling = objective.loss((features, maps), no_images(3)).accuracy
    assert float(telling) == 1.0
    assert float(silent) == pytest.approx(1 / 3 if name == "stdim" else 0.0)


def test_infonce_is_the_plugins_loss() -> None:
    objective = GlobalInfoNCE(encoder(), seeded())
    features = torch.randn(4, 2, 256, generator=seeded(1))
    critic: Any = objective.contrast.critic("global")
    now, later = (features[:, i] - features[:, i].mean(0) for i in range(2))
    anchors = [each / each.norm() for each in now @ critic.anchor_projection[0].detach()]
    candidates = [each / each.norm() * 10 for each in later @ critic.candidate_projection.detach()]
    expected = sum(picks(anchor, candidates, i) for i, anchor in enumerate(anchors)) / 4
    assert value(objective, (features,), no_images(4)) == pytest.approx(expected, rel=1e-4)


def test_cpc_picks_among_all_sequences_and_times() -> None:
    objective: Any = CPC(encoder(), seeded())
    features = torch.randn(2, 100, 256, generator=seeded(1)) / 8
    with torch.no_grad():
        states = objective.summary(features)[0]
    expected, heads = 0.0, {1: 0, 49: 12}  # two of every fourth offset: loops are slow
    for offset, head in heads.items():
        targets = [features[b, t] for b in range(2) for t in range(offset, 100)]
        predictions = [
            affine(objective.predictors[head], states[b, t])
            for b in range(2)
            for t in range(100 - offset)
        ]
        losses = [picks(prediction, targets, i) for i, prediction in enumerate(predictions)]
        expected += sum(losses) / len(losses)
    whole = value(objective, (features,), no_images(2))
    with torch.no_grad():  # without a say, a head scores all targets alike
        for head in heads.values():
            objective.predictors[head].weight.zero_()
            objective.predictors[head].bias.zero_()
    chance = sum(math.log(2 * (100 - offset)) for offset in heads)
    silent = value(objective, (features,), no_images(2))
    assert whole - silent == pytest.approx(expected - chance, rel=1e-3)
    assert len(objective.predictors) == 25


def test_vae_is_squared_error_plus_divergence() -> None:
    objective: Any = build("vae")
    images = torch.randint(0, 256, (2, 1, 1, 210, 160), generator=seeded(3), dtype=torch.uint8)
    means = torch.randn(2, 256, generator=seeded(1))
    log_variances = torch.randn(2, 256, generator=seeded(2)) - 3
    batch = FrameBatch(images, seed=5)
    found = value(objective, (means, log_variances), batch)
    noise = torch.randn(2, 256, generator=seeded(5))
    with torch.no_grad():
        painted = objective.decoder(means + (log_variances / 2).exp() * noise)
    error = ((painted - images[:, 0] / 255) ** 2).double().sum() / 2
    posterior = torch.distributions.Normal(means, (log_variances / 2).exp())
    unit = torch.distributions.Normal(torch.zeros(2, 256), torch.ones(2, 256))
    divergence = torch.distributions.kl_divergence(posterior, unit).double().sum() / 2
    assert found == pytest.approx(float(error + divergence), rel=1e-5)
    assert value(objective, (means, log_variances), FrameBatch(images, seed=6)) != found


def test_pixel_prediction_paints_the_next_frame() -> None:
    objective: Any = build("pixel_pred")
    images = torch.randint(0, 256, (2, 2, 1, 210, 160), generator=seeded(3), dtype=torch.uint8)
    with torch.no_grad():
        features = objective.encode(images)
        painted = objective.decoder(objective.transition(features[0]))
    expected = ((painted - images[:, 1] / 255) ** 2).mean()
    found = objective.loss(features, FrameBatch(images)).loss
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_paints_screens_refuses_stacked_frames(name: str) -> None:
    stacked = PixelEncoder((4, 84, 84), generator=seeded())
    if not paints_screens(name):
        make_objective(name, stacked, seeded(), variables=["x"])
        return
    with pytest.raises(ValueError, match="an STDIMEncoder to paint 210x160 screens, got PixelEnc"):
        make_objective(name, stacked, seeded())


def test_supervised_is_the_mean_cross_entropy_of_its_variables() -> None:
    objective = Supervised(encoder(), seeded(), ["x", "y"])
    features = torch.randn(3, 256, generator=seeded(1))
    labels = {"x": torch.tensor([0, 255, 3]), "y": torch.tensor([9, 9, 10])}
    expected = 0.0
    for i in range(3):
        scores = affine(objective.heads, features[i]).double()
        for first, name in ((0, "x"), (256, "y")):
            of_variable = scores[first : first + 256]
            expected += float(of_variable.logsumexp(0) - of_variable[labels[name][i]]) / 6
    batch = FrameBatch(no_images(3).images, labels)
    assert value(objective, (features,), batch) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match=r"labels of \['x', 'y'\], got none of \['y'\]"):
        objective.loss((features,), FrameBatch(batch.images, {"x": labels["x"]}))
    with pytest.raises(ValueError, match="`variables` to learn, got none"):
        make_objective("supervised", encoder(), seeded())


def test_decoder_paints_whole_screens() -> None:
    painted = screen_decoder(256, seeded())(torch.zeros(2, 256))
    assert painted.shape == (2, 1, 210, 160)
    assert bool(((painted > 0) & (painted < 1)).all())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_samples_are_what_the_objective_says(name: str) -> None:
    objective, given = build(name), frames()
    n_frames = N_FRAMES.get(name, 1)
    n_samples = 42 if name == "cpc" else 64
    rows = objective.draw(given, n_samples, np.random.default_rng(0))
    assert rows.shape == (n_samples, n_frames)
    ids = given.episode_ids[rows]
    assert (ids == ids[:, :1]).all()
    in_order = rows[:, :2] if name == "jsd_stdim" else rows
    assert (np.diff(in_order, axis=1) == 1).all()
    assert len(np.unique(rows[:, 0])) == n_samples
    with pytest.raises(ValueError, match="Collect more frames, or lower the batch size"):
        objective.draw(given, 500, np.random.default_rng(0))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_parameter_learns_and_no_global_random_number_is_drawn(name: str) -> None:
    before = torch.get_rng_state()
    objective, given = build(name), frames()
    rows = objective.draw(given, 2, np.random.default_rng(0))
    images = torch.as_tensor(given.observations[rows])
    labels = {k: torch.as_tensor(v[rows[:, 0]]) for k, v in given.labels.items()}
    batch = FrameBatch(images, labels)
    encoded = objective.encode(images)
    assert all(len(each) == 2 for each in encoded)
    objective.loss(encoded, batch).loss.backward()  # type: ignore[no-untyped-call]
    for parameter_name, parameter in objective.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert bool(parameter.grad.any()), parameter_name
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["nature", "impala"])
@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in ("vae", "pixel_pred")])
def test_stacked_frames_are_contrasted_where_they_share_none(name: str, trunk: str) -> None:
    stacked = PixelEncoder((4, 84, 84), 32, encoder=trunk, generator=seeded())
    objective: Any = make_objective(name, stacked, seeded(), variables=("x",))
    given = replace(frames(1200, 600), observations=np.zeros((1200, 4, 84, 84), np.uint8))
    rows = objective.draw(given, 24, np.random.default_rng(0))
    if name in ("stdim", "infonce", "positional_dim"):
        assert (rows[:, 1] - rows[:, 0] == 4).all()
    if name == "cpc":
        assert objective.offsets[0] == 5
        rows = rows[:2]
    images = torch.randint(
        0, 256, (2, rows.shape[1], 4, 84, 84), generator=seeded(1), dtype=torch.uint8
    )
    batch = FrameBatch(images, {"x": torch.zeros(2, dtype=torch.int64)})
    objective.loss(objective.encode(images), batch).loss.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in stacked.parameters())


def test_colour_frames_are_paired_with_the_next_one_if_told() -> None:
    colour = PixelEncoder((3, 40, 40), 16, generator=seeded())
    given = replace(frames(), observations=np.zeros((240, 3, 40, 40), np.uint8))
    for name in ("stdim", "positional_dim", "jsd_stdim", "infonce"):
        objective = make_objective(name, colour, seeded())
        objective.horizon = 1
        rows = objective.draw(given, 4, np.random.default_rng(0))
        assert (rows[:, 1] - rows[:, 0] == 1).all()
        images = torch.zeros(4, rows.shape[1], 3, 40, 40, dtype=torch.uint8)
        assert objective.loss(objective.encode(images), FrameBatch(images)).loss.isfinite()


def test_an_encoder_without_places_is_refused() -> None:
    with pytest.raises(TypeError, match=r"whose map has places, got Linear"):
        make_objective("stdim", torch.nn.Linear(2, 2), seeded())  # type: ignore[arg-type]


def test_an_unknown_objective_names_the_known() -> None:
    with pytest.raises(ValueError, match="stdim"):
        make_objective("st-dim", encoder(), seeded())
