"""Arms that hold everything but one thing: what time tells, or the loss."""

import copy

import numpy as np
import pytest
import torch

from rl_infonce.networks.random_shift import random_shift
from tests.sb3.worlds import ALGORITHMS, extractors_of, policy_kwargs


@pytest.mark.thorough
@pytest.mark.slow
def test_a_placebo_cannot_be_learned() -> None:
    accuracies = {}
    for positives in ("future", "shuffled"):
        kwargs = policy_kwargs(positives=positives, infonce_coef=1.0, n_pairs=16)
        model = ALGORITHMS["PPO"](kwargs, learning_rate=1e-3)
        (extractor,) = extractors_of(model)
        model.learn(960)
        experience = extractor.experience()
        assert experience is not None
        with torch.no_grad():
            losses = [extractor.infonce_loss(experience) for _ in range(30)]
        accuracies[positives] = np.mean([float(r.accuracy.mean()) for r in losses if r is not None])
    assert accuracies["future"] > 0.3
    assert accuracies["shuffled"] < 0.13, "one of 15 candidates"


def test_only_the_hosts_updates_see_moved_observations() -> None:
    kwargs = policy_kwargs(augment_observations=True, infonce_coef=0.0)
    (extractor,) = extractors_of(ALGORITHMS["PPO"](kwargs))
    images = torch.rand(5, 4, 36, 36)
    expected = random_shift(images, copy.deepcopy(extractor._session.rng))
    extractor.train()
    torch.testing.assert_close(extractor(images), extractor.encoder.encode(expected).features)
    assert not torch.equal(expected, images)
    with torch.no_grad():
        torch.testing.assert_close(extractor(images), extractor.encoder.encode(images).features)
    torch.testing.assert_close(extractor.eval()(images), extractor.encoder.encode(images).features)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_augmentation_alone_trains(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(augment_observations=True, infonce_coef=0.0)).learn(130)
    assert all(torch.isfinite(each).all() for each in model.policy.parameters())
    plain = ALGORITHMS[name](policy_kwargs(infonce_coef=0.0)).learn(130)
    pairs = zip(model.policy.parameters(), plain.policy.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)
