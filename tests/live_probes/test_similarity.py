"""Critic scores of an anchor with its own episode and with another, against a loop."""

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce import InfoNCEExtractor
from rl_infonce.agents.features import acting_extractor
from rl_infonce.live_probes.similarity import critic_scores, has_critic
from tests.sb3.fakes import stamped_vec_env
from tests.sb3.labelled import stamped_observations
from tests.sb3.worlds import ALGORITHMS, policy_kwargs

LABELLED = stamped_observations(n_episodes=3, length=10)
OBSERVATIONS, EPISODE_IDS = LABELLED.observations, LABELLED.episode_ids
IMAGES = torch.as_tensor(OBSERVATIONS)


def policy_with(**settings: Any) -> BasePolicy:
    return ALGORITHMS["PPO"](policy_kwargs(**settings)).policy


def extractor_of(policy: BasePolicy) -> InfoNCEExtractor:
    extractor = acting_extractor(policy)
    assert has_critic(extractor)
    return extractor


def found(policy: BasePolicy, n_anchors: int = 5, **settings: Any) -> Any:
    rng = np.random.default_rng(0)
    scores = critic_scores(
        policy, OBSERVATIONS, EPISODE_IDS, rng, n_anchors=n_anchors, n_steps=6, **settings
    )
    assert scores is not None
    return scores


def encoded_by(extractor: InfoNCEExtractor) -> Any:
    with torch.no_grad():
        return extractor.eval().encoder.encode(IMAGES / 255)


def rows_of(scores: Any) -> list[int]:
    """Return the rows of all stretches, those of the anchors' own episodes first."""
    return [row + i for start in (scores.anchors, scores.others) for row in start for i in range(6)]


def test_stretches_stay_in_their_episode_and_differ() -> None:
    scores = found(policy_with(), n_anchors=40)
    ids = EPISODE_IDS
    assert (ids[scores.anchors] == ids[scores.anchors + 5]).all()
    assert (ids[scores.others] == ids[scores.others + 5]).all()
    assert (ids[scores.anchors] != ids[scores.others]).all()
    # every place from which 6 steps fit occurs, the last one included
    assert set(scores.anchors % 10) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("settings", [{}, {"horizons": (4, 5)}, {"critic": "cosine"}])
def test_scores_are_those_of_the_critic_one_by_one(settings: dict[str, Any]) -> None:
    policy = policy_with(**settings)
    scores, extractor = found(policy), extractor_of(policy)
    encoded = encoded_by(extractor).features
    anchors = encoded[scores.anchors] - encoded[scores.anchors].mean(0)
    centre = encoded[rows_of(scores)].mean(0)
    critic: Any = extractor.infonce.critic("global")
    for k in range(len(extractor.horizons)):
        for b in range(5):
            for start, ours in ((scores.anchors, scores.same), (scores.others, scores.other)):
                for i in range(6):
                    candidate = encoded[start[b] + i] - centre
                    expected = critic(anchors[b : b + 1], candidate[None], k)
                    assert ours[k, b, i] == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)


def test_local_scores_are_averaged_over_positions() -> None:
    policy = policy_with(preset="spatial_cpc")
    scores, extractor = found(policy), extractor_of(policy)
    encoded, rows = encoded_by(extractor), rows_of(scores)
    features, maps = encoded.features[scores.anchors], encoded.maps.flatten(2)
    critic: Any = extractor.infonce.critic("global_local")
    centred = features - features.mean(0)
    per_position = [
        critic(centred, maps[rows, :, p] - maps[rows, :, p].mean(0)) for p in range(maps.shape[2])
    ]
    expected = torch.stack(per_position).mean(0).reshape(5, 2, 5, 6).detach()
    for b in range(5):
        np.testing.assert_allclose(scores.same[0, b], expected[b, 0, b], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(scores.other[0, b], expected[b, 1, b], rtol=1e-3, atol=1e-4)


def test_a_context_is_read_from_the_anchors_own_episode() -> None:
    policy = policy_with(context="gru", context_length=3)
    extractor = extractor_of(policy)
    past: Any = extractor.infonce.past
    seen: list[Any] = []
    past.register_forward_pre_hook(
        lambda _module, inputs, kwargs: seen.append((inputs[0], kwargs["used"])), with_kwargs=True
    )
    scores = found(policy, n_anchors=30)
    ((context, used),) = seen
    encoded = encoded_by(extractor).features
    for b, anchor in enumerate(scores.anchors):
        for back in range(3):
            in_episode = anchor % 10 >= back
            assert bool(used[b, 2 - back]) == in_episode
            if in_episode:
                torch.testing.assert_close(context[b, 2 - back], encoded[anchor - back])


def test_futures_go_through_the_target_encoder() -> None:
    policy = policy_with(preset="atc", augmentation="none")
    target = extractor_of(policy).target
    assert target is not None
    target.update(dict(extractor_of(policy).encoder.named_parameters()))
    before = found(policy)
    for average in target.averages().values():
        average.zero_()
    after = found(policy)
    assert np.ptp(before.same) > 0
    np.testing.assert_allclose(after.same - after.other, 0.0, atol=1e-6)


def test_futures_go_through_the_encoder_while_the_target_has_not_begun() -> None:
    policy = policy_with(preset="atc", augmentation="none")
    target = extractor_of(policy).target
    assert target is not None
    for average in target.averages().values():
        average.zero_()
    before = found(policy)
    target.update(dict(extractor_of(policy).encoder.named_parameters()))
    np.testing.assert_allclose(found(policy).same, before.same, rtol=1e-5)


def test_images_are_normalised_as_the_agent_sees_them() -> None:
    normalize = VecNormalize(stamped_vec_env(1), norm_reward=False)
    assert normalize.obs_rms is not None
    normalize.obs_rms.update(OBSERVATIONS)
    kwargs = policy_kwargs(normalized_image=True) | {"normalize_images": False}
    policy = PPO("CnnPolicy", normalize, policy_kwargs=kwargs, n_steps=8, batch_size=8).policy
    sizes: dict[str, Any] = {"n_anchors": 5, "n_steps": 6}
    found, expected = (
        critic_scores(
            policy, images, EPISODE_IDS, np.random.default_rng(0), vec_normalize=own, **sizes
        )
        for images, own in (
            (OBSERVATIONS, normalize),
            (normalize.normalize_obs(OBSERVATIONS), None),
        )
    )
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found.same, expected.same, rtol=1e-5)


def test_nothing_is_said_without_a_second_episode_or_a_critic() -> None:
    policy = policy_with()
    rng = np.random.default_rng(0)
    assert critic_scores(policy, OBSERVATIONS[:10], EPISODE_IDS[:10], rng, n_steps=6) is None
    assert critic_scores(policy, OBSERVATIONS, EPISODE_IDS, rng, n_steps=11) is None
    assert not has_critic(torch.nn.Identity())
    conditioned = ALGORITHMS["PPO"](policy_kwargs(action_conditioning=True))
    assert not has_critic(acting_extractor(conditioned.policy))
