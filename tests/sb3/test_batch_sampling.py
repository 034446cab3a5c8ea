"""A contrastive batch is what its steps and environments say, compared one entry at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces

from rl_infonce.sb3.batch_encoding import encode_actions, preprocess
from rl_infonce.sb3.batch_sampling import ObservationBatch, SamplingPlan, another_one, sample_batch
from rl_infonce.sb3.buffers import ExperienceReader
from rl_infonce.sb3.experience import Experience
from rl_infonce.settings import InfoNCESettings
from tests.sb3.fakes import decode
from tests.sb3.worlds import ALGORITHMS

SETTINGS = InfoNCESettings(
    n_pairs=12, context="gru", context_length=5, min_gap=3, action_conditioning=True
)
PLAN = SamplingPlan(SETTINGS, horizons=(4, 6))


def recorded(name: str) -> tuple[Any, Experience]:
    model = ALGORITHMS[name]().learn(96)
    return model, ExperienceReader().read(model)


def sampled(experience: Experience, seed: int = 0, **changes: Any) -> ObservationBatch:
    plan = PLAN._replace(settings=replace(SETTINGS, **changes))
    batch = sample_batch(experience, plan, np.random.default_rng(seed))
    assert batch is not None
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
@pytest.mark.parametrize("seed", range(3))
def test_context_futures_and_mask_agree_with_brute_force(name: str, seed: int) -> None:
    _, experience = recorded(name)
    batch = sampled(experience, seed)
    assert batch.n_anchors == 12
    context, futures = decode(batch.context), decode(batch.futures)
    for i in range(12):
        env, episode, time = (int(field[i, -1]) for field in context)
        for k, horizon in enumerate(PLAN.horizons):
            assert (futures.env[k, i], futures.episode[k, i]) == (env, episode)
            assert futures.time[k, i] == time + horizon
        for step in range(SETTINGS.context_length):
            expected = time - (SETTINGS.context_length - 1 - step)
            if batch.context_used[i, step]:
                assert (context.env[i, step], context.episode[i, step]) == (env, episode)
                assert context.time[i, step] == expected
        assert batch.context_used[i, -1]
        for j in range(12):
            same_episode = (context.env[j, -1], context.episode[j, -1]) == (env, episode)
            near = same_episode and abs(int(context.time[j, -1]) - time) < SETTINGS.min_gap
            assert batch.time_mask[i, j] == (i == j or not near)
            for k in range(len(PLAN.horizons)):
                identical = np.array_equal(batch.futures[k, i], batch.futures[k, j])
                assert batch.mask[k, i, j] == (i == j or not (near or identical))


def test_identical_observations_are_no_negatives_of_one_another() -> None:
    """Two images alternate by environment: only candidates that differ take part."""
    _, experience = recorded("PPO")

    def gather(rows: npt.NDArray[np.int64], envs: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.broadcast_to((envs % 2)[..., None], (*np.shape(envs), 5)).astype(np.uint8)

    constant = replace(experience, _gather=gather)
    batch = sampled(constant, min_gap=0)
    kind = batch.futures[0, :, 0]
    assert set(kind.tolist()) == {0, 1}
    expected = (kind[:, None] != kind) | np.eye(batch.n_anchors, dtype=np.bool_)
    for mask in batch.mask:
        np.testing.assert_array_equal(mask, expected)
    assert batch.time_mask.all(), "the bound counts them"


def test_fewer_than_two_pairs_have_no_negative_and_make_no_batch() -> None:
    _, experience = recorded("DQN")
    rng = np.random.default_rng(0)
    for n_legal in (0, 1, 2):
        part = experience.part(0, max(PLAN.horizons) + n_legal)
        assert len(part.sample_anchors(max(PLAN.horizons), 12, rng)[0]) == n_legal
        assert (sample_batch(part, PLAN, rng) is None) == (n_legal < 2)
    assert sampled(experience, n_pairs=2).n_anchors == 2


def test_steps_before_an_episode_are_marked_unused_and_all_others_used() -> None:
    _, experience = recorded("DQN")  # its whole past is in the buffer
    batch = sampled(experience, n_pairs=40)
    time = decode(batch.context).time[:, -1]
    ages = np.arange(SETTINGS.context_length)[::-1]
    assert np.array_equal(batch.context_used, time[:, None] >= ages)
    assert not batch.context_used.all()


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_actions_are_those_taken_from_the_anchor_on(name: str) -> None:
    model, experience = recorded(name)
    batch = sampled(experience)
    assert batch.actions is not None
    buffer = model.rollout_buffer if name == "PPO" else model.replay_buffer
    n_envs = 2 if name == "PPO" else 1
    n_rows = None if name == "PPO" else buffer.pos  # the rest of a replay buffer is empty
    images = np.asarray(buffer.observations)[:n_rows].reshape(-1, *model.observation_space.shape)
    actions = np.asarray(buffer.actions)[:n_rows].reshape(-1)
    stamps = decode(images)
    taken = {(int(e), int(p), int(t)): int(a) for e, p, t, a in zip(*stamps, actions, strict=True)}
    context = decode(batch.context)
    assert n_envs == len(set(stamps.env.tolist()))
    for i in range(batch.n_anchors):
        env, episode, time = (int(field[i, -1]) for field in context)
        for step in range(max(PLAN.horizons)):
            assert int(batch.actions[i, step].item()) == taken[env, episode, time + step]


def test_actions_become_one_hot_or_stay_continuous() -> None:
    device = torch.device("cpu")
    discrete = encode_actions(np.array([[[2], [0]]]), spaces.Discrete(3), device)
    assert discrete.tolist() == [[[0, 0, 1], [1, 0, 0]]]
    box = spaces.Box(-1, 1, (2,), np.float32)
    taken = np.array([[[0.5, -0.5], [0.0, 1.0]]], dtype=np.float32)
    assert encode_actions(taken, box, device).tolist() == taken.tolist()
    several = spaces.MultiDiscrete([2, 3])
    encoded = encode_actions(np.array([[[1, 2]]]), several, device)
    assert encoded.tolist() == [[[0, 1, 0, 0, 1]]]


def test_images_are_scaled_unless_they_are_normalised_already() -> None:
    images = torch.full((1, 1, 2, 2), 51, dtype=torch.uint8)
    space = spaces.Box(0, 255, (1, 2, 2), np.uint8)
    assert float(preprocess(images, space).max()) == pytest.approx(0.2)
    assert float(preprocess(images, space, normalize_images=False).min()) == 51


@pytest.mark.parametrize("name", ["PPO", "DQN"])
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_positives_are_other_anchors_futures(name: str, seed: int) -> None:
    _, experience = recorded(name)
    whole, batch = sampled(experience, seed), sampled(experience, seed, positives="shuffled")
    np.testing.assert_array_equal(batch.context, whole.context)
    stamps, shuffled = (
        [tuple(row) for row in np.stack(decode(each.futures[0]), axis=1).tolist()]
        for each in (whole, batch)
    )
    assert sorted(shuffled) == sorted(stamps), "each serves once"
    contexts = decode(batch.context[:, -1])
    for i in range(12):
        assert batch.mask[:, i, i].all()
        for j in range(12):
            env, episode, time = shuffled[j]
            own = (contexts.env[i], contexts.episode[i], contexts.time[i] + PLAN.horizons[0])
            is_own = (env, episode, time) == own
            assert batch.time_mask[i, j] == (not is_own), "positives and negatives are alike"
            assert not (i == j and is_own), "a positive that is the anchor's own future"
            for k in range(len(PLAN.horizons)):
                identical = np.array_equal(batch.futures[k, i], batch.futures[k, j])
                assert batch.mask[k, i, j] == (i == j or not (is_own or identical))


def test_a_cycle_leaves_nobody_alone() -> None:
    for n in range(2, 9):
        for seed in range(20):
            order = another_one(n, np.random.default_rng(seed))
            assert sorted(order) == list(range(n))
            assert (order != np.arange(n)).all()
