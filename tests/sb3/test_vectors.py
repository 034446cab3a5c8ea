"""On vectors every algorithm has the loss: right pairs, right gradients, the same baseline."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

from rl_infonce import InfoNCECombinedExtractor, InfoNCEExtractor
from rl_infonce.agents import freeze_encoder
from rl_infonce.networks.vectors import CLIP, RunningNormalizer, VectorMLP
from rl_infonce.objective import ContrastBatch
from rl_infonce.sb3 import vector_encoder
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss
from rl_infonce.sb3.batch_sampling import ObservationBatch, sample_batch
from tests.further import further, with_further
from tests.sb3.fakes import StampedVectorEnv, decode, stamped_vec_env
from tests.sb3.test_bit_identity import environment_streams
from tests.sb3.test_experience import FlatteningWatcher, StampedGoalEnv
from tests.sb3.worlds import (
    N_STEPS,
    RELATIVES,
    VECTOR_ALGORITHMS,
    assert_all_moved,
    assert_same_weights,
    extractors_of,
    policy_kwargs,
    record_logger,
    streams,
    weights_of,
)

CONTINUOUS = ("PPO", "A2C", "RecurrentPPO")
"""Algorithms of discrete actions above that can also have continuous ones."""
JOINT = [
    *(
        pytest.param(name, {}, id=name, marks=[pytest.mark.thorough] * (name in RELATIVES))
        for name in VECTOR_ALGORITHMS
        if name != "TRPO"
    ),
    *(pytest.param(name, {"continuous": True}, id=f"{name}-continuous") for name in CONTINUOUS),
]


def settings_of(*, isolated: bool, **settings: Any) -> dict[str, Any]:
    few: dict[str, Any] = {"encoder_updates": 1} if isolated else {}
    return policy_kwargs(isolated=isolated, horizons=(1, 3), **few, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), JOINT)
def test_with_rl_every_parameter_of_every_encoder_and_head_moves(
    name: str, changes: dict[str, Any]
) -> None:
    model = VECTOR_ALGORITHMS[name](settings_of(isolated=False), **changes)
    extractors = extractors_of(model)
    before = [weights_of(extractor) for extractor in extractors]
    logged = record_logger(model)
    model.learn(N_STEPS)
    model.logger.dump()
    assert all(0 < loss < 10 for loss in logged["infonce/loss"])
    for extractor, weights in zip(extractors, before, strict=True):
        assert {"mlp.0.weight", "mlp.2.bias"} < dict(extractor.named_parameters()).keys()
        assert_all_moved(extractor, weights)
        assert 0 <= extractor.last_infonce["accuracy_k3"] <= 1


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[ObservationBatch]:
    """A list that grows by one entry per contrastive batch."""
    found: list[ObservationBatch] = []

    def recording(*arguments: Any) -> ObservationBatch | None:
        raw = sample_batch(*arguments)
        if raw is not None:
            found.append(raw)
        return raw

    monkeypatch.setattr("rl_infonce.sb3.updates.sample_batch", recording)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [further(False), True])
@pytest.mark.parametrize(("name", "changes"), JOINT)
def test_no_pair_of_the_loss_crosses_an_episode(
    name: str, changes: dict[str, Any], isolated: bool, drawn: list[ObservationBatch]
) -> None:
    model = VECTOR_ALGORITHMS[name](settings_of(isolated=isolated), **changes)
    model.learn(N_STEPS)
    model.learn(N_STEPS, reset_num_timesteps=False)
    assert_futures_are_of_their_episodes(drawn)


def assert_futures_are_of_their_episodes(drawn: list[ObservationBatch]) -> None:
    """Assert that futures are those of their anchors' episodes, one step and three steps later."""
    assert sum(raw.n_anchors for raw in drawn) > 30
    for raw in drawn:
        anchors = decode(raw.context[:, -1])
        for futures, gap in zip(raw.futures, (1, 3), strict=True):
            expected = np.stack(anchors) + np.array([[0], [0], [gap]])
            np.testing.assert_array_equal(np.stack(decode(futures)), expected)


OPTIMIZED = {
    "optimize_memory_usage": True,
    "replay_buffer_kwargs": {"handle_timeout_termination": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "n_envs", "kind"),
    [
        pytest.param(SAC, 3, {}, id="three-envs"),
        pytest.param(DQN, 3, {"n_steps": 3}, id="several-steps"),
        pytest.param(SAC, 1, OPTIMIZED, id="optimized"),
        pytest.param(DQN, 3, OPTIMIZED, id="optimized-three-envs"),
    ],
)
def test_no_pair_of_a_full_ring_crosses_an_episode(
    algorithm: Any, n_envs: int, kind: dict[str, Any], isolated: bool, drawn: list[ObservationBatch]
) -> None:
    env = stamped_vec_env(n_envs, StampedVectorEnv, lengths=(4, 9), continuous=algorithm is SAC)
    sizes = {"buffer_size": 29 * n_envs, "learning_starts": 20, "batch_size": 4, "train_freq": 4}
    kwargs = settings_of(isolated=isolated)
    model = algorithm("MlpPolicy", env, policy_kwargs=kwargs, seed=0, **sizes, **kind)
    model.learn(70 * n_envs)
    model.learn(20 * n_envs, reset_num_timesteps=False)  # an episode is cut within a lap
    assert_futures_are_of_their_episodes(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [further(False), True])
@pytest.mark.parametrize("name", ["PPO", further("SAC"), "HER"])
def test_no_pair_of_a_dictionarys_vector_crosses_an_episode(
    name: str, isolated: bool, drawn: list[ObservationBatch]
) -> None:
    games = [StampedVectorEnv(i, lengths=(4, 9), continuous=name != "PPO") for i in range(2)]
    env = DummyVecEnv([lambda game=game: StampedGoalEnv(game) for game in games])  # type: ignore[misc]
    kwargs = settings_of(isolated=isolated, keys=["observation"])
    settings = kwargs["features_extractor_kwargs"]
    settings["cnn_output_dim"] = settings.pop("features_dim")
    kwargs["features_extractor_class"] = InfoNCECombinedExtractor
    sizes: dict[str, Any] = {"buffer_size": 58, "learning_starts": 20, "batch_size": 4}
    sizes = {"n_steps": 32, "batch_size": 32, "n_epochs": 1} if name == "PPO" else sizes
    sizes |= {"replay_buffer_class": HerReplayBuffer} if name == "HER" else {}
    algorithm: Any = PPO if name == "PPO" else SAC
    model = algorithm("MultiInputPolicy", env, policy_kwargs=kwargs, seed=0, **sizes)
    model.learn(140)
    model.learn(40, reset_num_timesteps=False)
    assert_futures_are_of_their_episodes(drawn)


@pytest.mark.slow
def test_a_rollout_of_continuous_actions_is_read_right() -> None:
    """Observations, episodes and actions are those of their step."""
    kwargs = settings_of(isolated=True)
    model: Any = VECTOR_ALGORITHMS["PPO"](kwargs, continuous=True)
    watcher = FlatteningWatcher()
    model.learn(2 * N_STEPS, callback=watcher)
    model.learn(N_STEPS, callback=watcher)
    assert watcher.n_compared > 500


class PlainNetwork(BaseFeaturesExtractor):
    """The network of the extractor, which watches what it is trained on, and nothing else."""

    def __init__(
        self, observation_space: Any, features_dim: int, with_observation: bool = True
    ) -> None:
        size = get_flattened_obs_dim(observation_space)
        super().__init__(observation_space, size * with_observation + features_dim)
        self.with_observation = with_observation
        self.normalizer = RunningNormalizer(size)
        self.mlp = VectorMLP(size, features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            # Stamps are never 0: such rows fill sequences of RecurrentPPO.
            self.normalizer.update(observations[observations.any(dim=1)])
        features: torch.Tensor = self.mlp(self.normalizer(observations))
        return torch.cat([observations, features], dim=1) if self.with_observation else features


def plain_kwargs(*, with_observation: bool = True) -> dict[str, Any]:
    return {
        **policy_kwargs(),
        "features_extractor_class": PlainNetwork,
        "features_extractor_kwargs": {"features_dim": 32, "with_observation": with_observation},
    }


FORMS = [
    (False, True),  # isolated, with_observation
    pytest.param(True, False, id="the default of vectors"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("isolated", "with_observation"), FORMS)
@pytest.mark.parametrize("name", with_further(VECTOR_ALGORITHMS, RELATIVES))
def test_coefficient_0_is_the_plain_network(
    name: str, isolated: bool, with_observation: bool
) -> None:
    if name == "TRPO" and not with_observation:
        pytest.skip("its own steps end in NaN on features alone here, without the loss also")
    kwargs = plain_kwargs(with_observation=with_observation)
    plain = VECTOR_ALGORITHMS[name](kwargs).learn(N_STEPS)
    expected = streams(), environment_streams(plain)
    kwargs = settings_of(isolated=isolated, with_observation=with_observation, infonce_coef=0.0)
    model = VECTOR_ALGORITHMS[name](kwargs)
    model.learn(N_STEPS)
    assert_same_weights(model.policy, plain.policy)
    assert (streams(), environment_streams(model)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    "name", with_further([name for name in VECTOR_ALGORITHMS if name != "TRPO"], RELATIVES)
)
def test_the_loss_draws_nothing_from_the_hosts_streams(name: str, isolated: bool) -> None:
    """TRPO draws a number for each parameter that it trains, and so fewer beside one isolated."""
    plain = VECTOR_ALGORITHMS[name](plain_kwargs()).learn(N_STEPS)
    expected = streams(), environment_streams(plain)
    model = VECTOR_ALGORITHMS[name](settings_of(isolated=isolated, context="gru"))
    model.learn(N_STEPS)
    assert extractors_of(model)[0].last_infonce["loss"] > 0
    assert (streams(), environment_streams(model)) == expected


def test_the_hosts_target_networks_get_the_statistics() -> None:
    """Joint training copies them as it copies those of a batch norm."""
    for name in ("DQN", "SAC", "TD3"):
        kwargs = settings_of(isolated=False)
        more = {"target_update_interval": 1} if name == "DQN" else {}
        model = VECTOR_ALGORITHMS[name](kwargs, **more).learn(N_STEPS)
        every = [m for m in model.policy.modules() if isinstance(m, InfoNCEExtractor)]
        assert len(every) > len(extractors_of(model))
        for extractor in every:
            assert float(extractor.get_submodule("normalizer").get_buffer("running_count")) > 30


@pytest.mark.parametrize("objective", ["infonce", "self_prediction"])
def test_stopped_targets_are_the_features_of_now_without_a_gradient(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = AuxiliaryLoss.encode
    encoded: list[ContrastBatch] = []

    def comparing(self: AuxiliaryLoss, raw: ObservationBatch) -> ContrastBatch:
        batch = encode(self, raw)
        encoded.append(batch)
        vectors = torch.as_tensor(raw.futures).flatten(0, 1)
        own = self.encoder.encode(vectors).features.detach().view_as(batch.futures)
        torch.testing.assert_close(batch.futures, own, rtol=1e-5, atol=1e-6)
        return batch

    monkeypatch.setattr(AuxiliaryLoss, "encode", comparing)
    settings = {"objective": objective, "target_encoder_tau": 1.0}
    VECTOR_ALGORITHMS["PPO"](settings_of(isolated=False, **settings)).learn(N_STEPS)
    assert len(encoded) > 3
    assert all(batch.context.requires_grad for batch in encoded)
    assert not any(batch.futures.requires_grad for batch in encoded)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_averaged_targets_are_the_features_of_the_average_of_former_encoders(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tau = 0.3
    encode = AuxiliaryLoss.encode
    former: dict[int, tuple[Any, Any]] = {}  # average and encoder at the batch before
    n_moved = 0

    def comparing(self: AuxiliaryLoss, raw: ObservationBatch) -> ContrastBatch:
        nonlocal n_moved
        own = {n: p.detach().clone() for n, p in self.encoder.named_parameters()}
        average, before = former.get(id(self.encoder), (own, own))
        average = {n: (1 - tau) * average[n] + tau * before[n] for n in own}
        former[id(self.encoder)] = average, own
        batch = encode(self, raw)
        vectors = torch.as_tensor(raw.futures).flatten(0, 1)
        expected = self.encoder.encode(vectors, average).features.detach()
        torch.testing.assert_close(batch.futures.flatten(0, 1), expected, rtol=1e-4, atol=1e-5)
        n_moved += not torch.allclose(expected, self.encoder.encode(vectors).features, atol=1e-3)
        return batch

    monkeypatch.setattr(AuxiliaryLoss, "encode", comparing)
    rates: dict[str, Any] = {
        "encoder_learning_rate": 0.01,
        "encoder_updates": 3,
        "input_sparsity": 0.0,
        "select_inputs": False,
    }
    kwargs = policy_kwargs(isolated=True, horizons=(1, 3), target_encoder_tau=tau, **rates)
    VECTOR_ALGORITHMS[name](kwargs).learn(2 * N_STEPS)
    assert n_moved > 3


def test_diagnostics_and_masks_are_those_of_the_drawn_vectors(
    drawn: list[ObservationBatch],
) -> None:
    model = VECTOR_ALGORITHMS["PPO"](settings_of(isolated=True, min_gap=4))
    logged = record_logger(model)
    model.learn(N_STEPS)
    model.logger.dump()
    for tag in ("floor_observations_k1", "floor_random_k3", "accuracy_k3"):
        assert all(0 <= share <= 1 for share in logged[f"infonce/{tag}"])
    for raw in drawn:
        env, episode, time = decode(raw.futures)  # [K, B] each
        same = (env[..., None] == env[:, None]) & (episode[..., None] == episode[:, None])
        near = same & (abs(time[..., None] - time[:, None]) < 4)
        itself = np.eye(raw.n_anchors, dtype=bool)
        np.testing.assert_array_equal(raw.mask, ~near | itself)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_by_default_a_vector_and_its_action_predict_one_step(name: str) -> None:
    kwargs = policy_kwargs()
    kwargs["features_extractor_kwargs"] = {}
    for extractor in extractors_of(VECTOR_ALGORITHMS[name](kwargs)):
        assert extractor.horizons == (1,)
        assert extractor.settings.action_conditioning
        assert extractor.settings.objective == "infonce"


class UnevenEnv(gymnasium.Env[Any, Any]):
    """Episodes of chance lengths, whose observations are about 100."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 20))
        return self._observation(), {}

    def step(self, _action: Any) -> Any:
        self.left -= 1
        return self._observation(), 1.0, self.left <= 0, False, {}

    def _observation(self) -> Any:
        return np.array([100 + self.np_random.normal()], np.float32)


@pytest.mark.parametrize("settings", [{"infonce_coef": 0.0}, {"isolated": False}, {}])
def test_zeros_that_pad_sequences_are_no_observations(settings: dict[str, Any]) -> None:
    small = {**policy_kwargs(**settings), "lstm_hidden_size": 8}
    model = RecurrentPPO(
        *("MlpLstmPolicy", UnevenEnv()),
        n_steps=128,
        batch_size=64,
        n_epochs=1,
        seed=0,
        policy_kwargs=small,
    )
    (extractor,) = extractors_of(model.learn(256))  # updates of the loss come with the next rollout
    normalizer = extractor.get_submodule("normalizer")
    assert float(normalizer.get_buffer("running_mean")) == pytest.approx(100, abs=1)
    assert float(normalizer.get_buffer("running_var")) < 2


@pytest.mark.parametrize("infonce_coef", [0.0, 0.01])
def test_a_frozen_encoder_of_vectors_counts_some_and_stays(
    infonce_coef: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_encoder, "N_COUNTED_FROZEN", 150)
    model = VECTOR_ALGORITHMS["PPO"](policy_kwargs(infonce_coef=infonce_coef))
    freeze_encoder(model)
    encoder: Any = extractors_of(model)[0].encoder
    count = encoder.get_buffer("normalizer.running_count")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The encoder is frozen")
        model.learn(N_STEPS * 4)
        first, n_counted = encoder.means.clone(), float(count)
        assert first.any()
        assert 150 <= n_counted < 150 + N_STEPS
        model.learn(N_STEPS * 2)
    assert torch.equal(encoder.means, first)
    assert float(count) == n_counted


def test_a_frozen_encoder_knows_more_than_what_follows_the_first_reset() -> None:
    """A2C trains on 5 steps of each environment, in which a car begins to roll."""
    env = make_vec_env("MountainCarContinuous-v0", 4, seed=0)
    model = A2C("MlpPolicy", env, policy_kwargs=policy_kwargs(infonce_coef=0.0), seed=0)
    freeze_encoder(model)
    seen = Collecting()
    model.learn(2100, seen)
    (extractor,) = extractors_of(model)
    inputs = extractor.encoder.prepared(torch.from_numpy(np.concatenate(seen.observations)))
    assert inputs.abs().max() < CLIP
    assert (inputs.std(dim=0) < 1.5).all()


class Collecting(BaseCallback):
    """Keeps what was observed."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[Any] = []

    def _on_step(self) -> bool:
        self.observations.append(self.locals["new_obs"].copy())
        return True
