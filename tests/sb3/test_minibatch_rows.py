"""Which rows of its buffers RL's minibatch holds, and what becomes of others."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from rl_infonce import InfoNCECombinedExtractor
from rl_infonce.copies import row_sums
from rl_infonce.sb3.minibatch import ABSENT, AMBIGUOUS, MinibatchPairs, RolloutRows
from rl_infonce.sb3.replay_rows import ReplayRows
from rl_infonce.sb3.updates import find_pairs
from tests.sb3.fakes import (
    IMAGE_SHAPE,
    StampedDictEnv,
    StampedEnv,
    StampedVectorEnv,
    decode,
    stamped_vec_env,
)
from tests.sb3.test_minibatch import SlowEnv, kwargs_of, stamps_at
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    extractors_of,
    policy_kwargs,
)


def test_rows_that_share_all_numbers_are_ambiguous() -> None:
    model = ALGORITHMS["PPO"]().learn(64)
    buffer: Any = model.rollout_buffer  # type: ignore[attr-defined]
    arrays = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
    for array in arrays:
        array[5] = array[40]
    minibatch = buffer._get_samples(np.arange(64))
    places = RolloutRows().find(model, minibatch)
    steps_by_env = np.arange(64).reshape(2, 32)  # `get` flattens environment by environment
    expected = [
        AMBIGUOUS if row in (5, 40) else 2 * step + env
        for env, rows in enumerate(steps_by_env)
        for step, row in enumerate(rows)
    ]
    assert places.tolist() == expected


def test_rows_of_the_next_rollout_are_found_where_no_step_was_counted() -> None:
    model = ALGORITHMS["PPO"]().learn(64)
    buffer: Any = model.rollout_buffer  # type: ignore[attr-defined]
    rows = RolloutRows()
    former = rows.find(model, buffer._get_samples(np.arange(64)))
    buffer.returns += 1  # as a loop of one's own fills it, which never changes num_timesteps
    assert rows.find(model, buffer._get_samples(np.arange(64))).tolist() == former.tolist()
    assert set(former) == {*range(64)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Box", "Dict"])
def test_rows_are_found_in_one_environment_and_in_dictionaries(kind: str) -> None:
    """The image of each place is that of the row."""

    def env() -> Any:
        single = StampedEnv(lengths=(9, 15))
        return StampedDictEnv(single) if kind == "Dict" else single

    sizes: dict[str, Any] = {"n_steps": 48, "batch_size": 48, "n_epochs": 1, "seed": 0}
    if kind == "Dict":
        kwargs = {
            "features_extractor_class": InfoNCECombinedExtractor,
            "features_extractor_kwargs": {"pairs_from": "minibatch", "cnn_output_dim": 8},
        }
        model = PPO("MultiInputPolicy", env(), policy_kwargs=kwargs, **sizes)
    else:
        model = PPO("CnnPolicy", env(), policy_kwargs=kwargs_of(), **sizes)
    model.learn(48)
    buffer: Any = model.rollout_buffer
    rows = np.random.default_rng(0).permutation(48)
    places = RolloutRows().find(model, buffer._get_samples(rows))
    assert sorted(places.tolist()) == [*range(48)]
    images = buffer.observations["image"] if kind == "Dict" else buffer.observations
    assert decode(images[rows]).time.tolist() == decode(images[places]).time.tolist()
    (extractor,) = extractors_of(model)
    assert extractor.last_infonce["n_pairs"] > 32 - 12  # all legal ones; the buffer's are 32


def test_rows_of_a_replay_buffer_are_found_by_what_they_hold() -> None:
    model = ALGORITHMS["DQN"](buffer_size=50, learning_starts=1000)
    rows = ReplayRows()

    def check(n_filled: int) -> None:
        buffer: Any = model.replay_buffer  # type: ignore[attr-defined]
        chosen = np.random.default_rng(0).permutation(n_filled)[:20]
        drawn = buffer.sample(1)._replace(
            observations=torch.as_tensor(buffer.observations[chosen, 0]),
        )
        assert rows.find(model, drawn).tolist() == chosen.tolist()

    model.learn(30)
    check(30)
    model.learn(30, reset_num_timesteps=False)  # goes round
    check(50)
    model.learn(10)  # counts from 0 again
    check(50)
    model.learn(200)  # overwrites all
    check(50)
    buffer: Any = model.replay_buffer  # type: ignore[attr-defined]
    repeated = torch.as_tensor(buffer.observations[[3, 4, 3, 7], 0])
    other = torch.zeros_like(repeated[:1])
    drawn = buffer.sample(1)._replace(observations=torch.cat([repeated, other]))
    assert rows.find(model, drawn).tolist() == [3, 4, AMBIGUOUS, 7, ABSENT]
    buffer.observations[9] = buffer.observations[4]
    assert ReplayRows().find(model, drawn).tolist() == [3, AMBIGUOUS, AMBIGUOUS, 7, ABSENT]
    scaled = drawn._replace(observations=drawn.observations / 255)
    assert rows.find(model, scaled).tolist() == [ABSENT] * 5


def test_rows_whose_sums_collide_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ALGORITHMS["DQN"](buffer_size=50, learning_starts=1000).learn(30)
    buffer: Any = model.replay_buffer  # type: ignore[attr-defined]
    rows, other = ReplayRows(), np.zeros((1, *IMAGE_SHAPE), dtype=np.uint8)
    first = buffer.observations[0]

    def colliding(observations: Any) -> Any:
        return row_sums(first if np.array_equal(observations, other) else observations)

    monkeypatch.setattr("rl_infonce.sb3.replay_rows.row_sums", colliding)
    for image, place in ((first, 0), (other, ABSENT)):
        drawn = buffer.sample(1)._replace(observations=torch.as_tensor(image))
        assert rows.find(model, drawn).tolist() == [place]


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_rows_that_were_noted_one_by_one_are_those_of_a_fresh_look(
    optimize_memory_usage: bool,
) -> None:
    """Or a training that is resumed would draw otherwise, where observations repeat."""
    env = stamped_vec_env(1, SlowEnv, lengths=(9, 15))
    kwargs: dict[str, Any] = {"optimize_memory_usage": optimize_memory_usage}
    if optimize_memory_usage:
        kwargs |= {"replay_buffer_kwargs": {"handle_timeout_termination": False}}
    model = DQN("CnnPolicy", env, buffer_size=50, policy_kwargs=policy_kwargs(), **kwargs)
    kept, compared = ReplayRows(), []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            buffer: Any = model.replay_buffer
            if self.num_timesteps > 1:
                drawn = buffer.sample(30)
                looks = [each.find(model, drawn).tolist() for each in (kept, ReplayRows())]
                compared.append(looks[0])
                assert looks[0] == looks[1]
            return True

    model.learn(130, callback=Look())
    assert len(compared) >= 129
    assert any(AMBIGUOUS in each for each in compared)
    assert any(max(each) >= 0 for each in compared)


def test_sums_of_rows_are_noted_as_sets_of_places_would_be() -> None:
    rng, rows = np.random.default_rng(0), ReplayRows()
    rows._sums = [None] * 12
    for _ in range(400):
        place, total = int(rng.integers(12)), [None, 1, 2, 3][rng.integers(4)]
        rows._put(place, total)
        for each in (1, 2, 3):
            with_it = [i for i, own in enumerate(rows._sums) if own == each]
            expected = ABSENT if not with_it else with_it[0] if len(with_it) == 1 else AMBIGUOUS
            assert rows._place_with(each) == expected


class TwoSamples(DQN):
    """Looks at other rows of the same number before those of its update."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        first = self.replay_buffer.sample(batch_size)  # type: ignore[union-attr]
        second = self.replay_buffer.sample(batch_size)  # type: ignore[union-attr]
        assert not torch.equal(first.observations, second.observations)
        for samples in (second, first):
            self.q_net(samples.observations)
        self._n_updates += 1


def test_pairs_are_those_of_what_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def recording(
        experience: Any, plan: Any, session: Any, observations: torch.Tensor
    ) -> MinibatchPairs | None:
        pairs = find_pairs(experience, plan, session, observations)
        assert pairs is not None
        encoded = decode((255 * observations).round().numpy().astype(np.uint8))
        seen.append((stamps_at(encoded, pairs.anchors), pairs.observed[0]))
        return pairs

    monkeypatch.setattr("rl_infonce.sb3.extractor.find_pairs", recording)
    env = stamped_vec_env(1, lengths=(9, 15))
    kwargs = kwargs_of(n_pairs=8)
    sizes: dict[str, Any] = {"buffer_size": 200, "learning_starts": 60, "batch_size": 16}
    TwoSamples("CnnPolicy", env, policy_kwargs=kwargs, **sizes).learn(80)
    assert len(seen) >= 8
    for encoded, observed in seen:
        assert encoded == stamps_at(decode(observed), slice(None))


class Rewarded(NamedTuple):
    """Samples of a rollout that are not SB3's."""

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor


class OwnSamples(PPO):
    """Hands itself rows of the rollout without the numbers of PPO."""

    def train(self) -> None:
        self.policy.set_training_mode(True)
        for rollout_data in self.rollout_buffer.get(32):
            samples = Rewarded(rollout_data.observations, rollout_data.actions, torch.zeros(32))
            del rollout_data
            values, *_ = self.policy.evaluate_actions(samples.observations, samples.actions[:, 0])
            assert values is not None
            values.mean().backward()  # type: ignore[no-untyped-call]
        self._n_updates += 1


def test_samples_of_ones_own_leave_pairs_to_the_buffer() -> None:
    env = stamped_vec_env(2, lengths=(9, 15))
    kwargs = kwargs_of(n_pairs=8)
    model = OwnSamples("CnnPolicy", env, n_steps=32, batch_size=32, policy_kwargs=kwargs)
    model.learn(64)
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 8


class ScalingBuffer(RolloutBuffer):
    """Hands out returns that it does not store."""

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_samples(*args, **kwargs)
        return samples._replace(returns=samples.returns * 3 + 1)


class WideBuffer(RolloutBuffer):
    """Hands out the values of several heads."""

    def _get_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_samples(*args, **kwargs)
        return samples._replace(old_values=samples.old_values[:, None].expand(-1, 2))


class RenamedBuffer(RolloutBuffer):
    """Keeps advantages elsewhere when they are computed."""

    def get(self, batch_size: int | None = None) -> Any:
        for samples in super().get(batch_size):
            kept, self.advantages = self.advantages, None  # type: ignore[assignment]
            yield samples
            self.advantages = kept


@pytest.mark.slow
@pytest.mark.parametrize("buffer", [ScalingBuffer, WideBuffer, RenamedBuffer])
def test_rows_that_are_not_found_are_drawn_instead_with_one_warning(buffer: Any) -> None:
    model = ALGORITHMS["PPO"](kwargs_of(n_pairs=8), rollout_buffer_class=buffer)
    with pytest.warns(UserWarning, match="32 are not in its buffer") as caught:
        model.learn(2 * N_STEPS)
    assert sum("not in its buffer" in str(each.message) for each in caught) == 1
    assert extractors_of(model)[0].last_infonce["n_pairs"] == 8


def test_off_policy_vecnormalize_is_named_as_what_changes_the_rows() -> None:
    env = VecNormalize(stamped_vec_env(2, StampedVectorEnv, continuous=True))
    kwargs = policy_kwargs(pairs_from="minibatch", isolated=False)
    model = SAC("MlpPolicy", env, learning_starts=20, policy_kwargs=kwargs)
    with pytest.warns(UserWarning, match="not in its buffer, as VecNormalize changes what is"):
        model.learn(60)
