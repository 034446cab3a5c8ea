"""The one line works on every algorithm: all that the loss should train is trained."""

import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage
from torch import nn

from rl_infonce import InfoNCEExtractor
from rl_infonce.device import _FAST
from rl_infonce.presets import PRESETS
from rl_infonce.sb3.auxiliary_loss import AuxiliaryLoss
from tests.further import further, with_further
from tests.sb3.fakes import IMAGE_SHAPE, StampedEnv
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    PPO_SIZES,
    RELATIVES,
    assert_all_moved,
    extractors_of,
    policy_kwargs,
    record_logger,
    weights_of,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_further(ALGORITHMS, RELATIVES))
def test_every_encoder_and_head_parameter_moves(name: str) -> None:
    model = ALGORITHMS[name]()
    extractors = extractors_of(model)
    before = [weights_of(extractor) for extractor in extractors]
    logged = record_logger(model)
    model.learn(N_STEPS)
    model.logger.dump()
    assert logged["infonce/loss"]
    assert all(0 < loss < 10 for loss in logged["infonce/loss"])
    for extractor, weights in zip(extractors, before, strict=True):
        names = {
            "cnn.0.weight",
            "linear.0.bias",
            "infonce.critics.global_term.candidate_projection",
        }
        assert names < dict(extractor.named_parameters()).keys()
        assert_all_moved(extractor, weights)
        assert 0 < extractor.last_infonce["loss"] < 10
        assert 0 <= extractor.last_infonce["accuracy_k4"] <= 1


@pytest.mark.parametrize("name", with_further(ALGORITHMS, RELATIVES))
def test_the_host_optimises_the_heads(name: str) -> None:
    model = ALGORITHMS[name]()
    policy: Any = model.policy
    owners = [policy, getattr(policy, "actor", None), getattr(policy, "critic", None)]
    optimised = {
        id(parameter)
        for owner in owners
        for group in getattr(getattr(owner, "optimizer", None), "param_groups", [])
        for parameter in group["params"]
    }
    for extractor in extractors_of(model):
        assert all(id(parameter) in optimised for parameter in extractor.infonce.parameters())


OPTIONS: dict[str, dict[str, Any]] = {
    "spatial_cpc": {"preset": "spatial_cpc"},
    "positional_cpc": {"preset": "positional_cpc"},
    "atc": {"preset": "atc"},
    "curl": {"preset": "curl"},
    "gru": {"context": "gru", "context_length": 3},
    "actions": {"action_conditioning": True, "horizons": (4, 6)},
    "mlp": {"critic": "mlp"},
    "stopped targets": {"target_encoder_tau": 1.0, "augmentation": "random_shift"},
    "impala": {"encoder": "impala"},
    "bf16": {"precision": "bf16"},
    "layer norms": {"normalization": "layer", "activation": "crelu", "preset": "atc"},
    "simplicial": {"feature_activation": "simplicial", "activation": "elu"},
}


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["PPO", "DQN", further("SAC")])
def test_every_parameter_moves_with_every_option(name: str, option: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(**OPTIONS[option]))
    extractors = extractors_of(model)
    before = [weights_of(extractor) for extractor in extractors]
    model.learn(64 if name == "PPO" else 72)  # four updates, or three
    for extractor, weights in zip(extractors, before, strict=True):
        assert_all_moved(extractor, weights)
        assert torch.isfinite(torch.tensor(list(extractor.last_infonce.values()))).all()


def test_bf16_runs_convolutions_in_bfloat16_and_hands_on_floats() -> None:
    extractors = [
        extractors_of(ALGORITHMS["PPO"](policy_kwargs(precision=precision)))[0].eval()
        for precision in ("fp32", "bf16")
    ]
    seen: list[torch.dtype] = []
    for extractor in extractors:
        layer: nn.Module = extractor.cnn[0]
        layer.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    images = torch.rand(4, *IMAGE_SHAPE, generator=torch.Generator().manual_seed(0))
    full, half = (extractor(images) for extractor in extractors)
    assert seen == [torch.float32, torch.bfloat16]
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("is_fast", [True, False])
def test_auto_is_bf16_where_that_is_fast_and_bf16_elsewhere_warns(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.device.has_fast_bf16", lambda _: is_fast)
    monkeypatch.setattr("rl_infonce.device._cpuinfo", lambda: "a processor of Linux")
    _FAST.clear()
    expected = "bf16" if is_fast else "fp32"
    auto, named = (
        extractors_of(ALGORITHMS["PPO"](policy_kwargs(precision=each)))[0].eval()
        for each in ("auto", expected)
    )
    named.load_state_dict(auto.state_dict())
    images = torch.rand(4, *IMAGE_SHAPE)
    assert torch.equal(auto(images), named(images))
    _FAST.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ALGORITHMS["PPO"](policy_kwargs(precision="bf16"))
        ALGORITHMS["PPO"](policy_kwargs(precision="auto"))
    of_precision = [w for w in caught if "precision='auto' takes what is faster" in str(w.message)]
    assert len(of_precision) == (0 if is_fast else 1)


@pytest.mark.thorough
def test_a_compiled_encoder_takes_what_is_faster_in_one_graph() -> None:
    (extractor,) = extractors_of(ALGORITHMS["PPO"](policy_kwargs(precision="auto")))
    images = torch.rand(4, *IMAGE_SHAPE)
    with torch.no_grad():
        compiled = torch.compile(extractor.eval(), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(images), extractor(images))


def test_the_first_positives_are_of_the_weights_that_training_starts_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SB3 draws PPO's weights anew after the extractor is built."""
    model = ALGORITHMS["PPO"](policy_kwargs(preset="atc"))
    (extractor,) = extractors_of(model)
    target, encode = extractor.target, AuxiliaryLoss.encode
    assert target is not None
    equal = []

    def noting(self: AuxiliaryLoss, raw: Any) -> Any:
        averages, online = target.averages(), dict(extractor.encoder.named_parameters())
        equal.append(all(torch.equal(averages[name], online[name]) for name in online))
        return encode(self, raw)

    monkeypatch.setattr(AuxiliaryLoss, "encode", noting)
    model.learn(64)
    assert equal[0]
    assert not all(equal)


def test_a_moving_target_encoder_follows_the_online_one() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(preset="atc"), learning_rate=0.01)
    (extractor,) = extractors_of(model)
    online: list[dict[str, torch.Tensor]] = []

    def keep(*_: Any) -> None:
        online.append({n: p.detach().clone() for n, p in extractor.encoder.named_parameters()})

    model.policy.optimizer.register_step_pre_hook(keep)
    model.learn(N_STEPS)
    assert len(online) == 8
    assert extractor.target is not None
    tau = PRESETS["atc"].target_encoder_tau or 0.0
    for name, found in extractor.target.averages().items():
        average = online[0][name]  # where the host's initialisation left it
        for each in online[1:]:
            average = (1 - tau) * average + tau * each[name]
        torch.testing.assert_close(found, average, atol=1e-6, rtol=0)
        assert not torch.allclose(average, online[0][name], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_target_networks_have_no_trained_extractor_of_their_own(name: str) -> None:
    model = ALGORITHMS[name]()
    every = [m for m in model.policy.modules() if isinstance(m, InfoNCEExtractor)]
    model.learn(N_STEPS)
    trained = {id(extractor) for extractor in extractors_of(model)}
    assert len(every) > len(trained)
    assert all(not e.last_infonce for e in every if id(e) not in trained)


@pytest.mark.parametrize("name", ["SAC", "TD3", "TQC", "CrossQ"])
def test_one_extractor_shared_by_actor_and_critic_trains(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs() | {"share_features_extractor": True})
    (extractor,) = extractors_of(model)
    before = weights_of(extractor)
    model.learn(N_STEPS)
    assert_all_moved(extractor, before)
    assert 0 < extractor.last_infonce["loss"] < 10


def test_images_with_channels_last_train_as_sb3_transposes_them() -> None:
    def env(index: int) -> gym.Env[Any, Any]:
        stamped = StampedEnv(index, lengths=(9, 15))
        space = spaces.Box(0, 255, (36, 36, 4), np.uint8)
        return gym.wrappers.TransformObservation(stamped, lambda o: np.moveaxis(o, 0, -1), space)

    sizes = {"buffer_size": 200, "learning_starts": 60, "batch_size": 16}
    for algorithm, settings in ((PPO, PPO_SIZES), (DQN, sizes)):
        transposed = DummyVecEnv([partial(env, index) for index in range(2)])
        model: BaseAlgorithm = algorithm(
            "CnnPolicy", transposed, policy_kwargs=policy_kwargs(), seed=0, **settings
        )
        assert isinstance(model.env, VecTransposeImage)
        model.learn(N_STEPS)
        assert 0 < extractors_of(model)[0].last_infonce["loss"] < 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC", "TQC", "CrossQ"])
def test_the_target_encoder_moves_once_per_gradient_step(name: str) -> None:
    """SAC, TQC and CrossQ ask the critic a second time for the actor's loss."""
    model: Any = ALGORITHMS[name](policy_kwargs(preset="atc"))
    n_steps: list[int] = []
    extractor = extractors_of(model)[-1]  # of SAC, the critic's
    optimizer = (model.policy if name in ("PPO", "DQN") else model.critic).optimizer
    optimizer.register_step_pre_hook(lambda *_: n_steps.append(1))
    model.learn(N_STEPS)
    assert extractor.target is not None
    n_moves = int(extractor.target.get_buffer("n_updates"))
    assert len(n_steps) <= n_moves <= len(n_steps) + 1
