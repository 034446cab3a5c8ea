"""The loss, its diagnostics and its decoupled updates on a GPU, where there is one."""

from typing import Any

import pytest
import torch
from stable_baselines3 import DQN, PPO

from rl_infonce import InfoNCECallback
from tests.sb3.fakes import stamped_vec_env
from tests.sb3.worlds import PPO_SIZES, extractors_of, policy_kwargs

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU"),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "cpc": {},
    "spatial_cpc": {"preset": "spatial_cpc"},
    "positional_cpc": {"preset": "positional_cpc"},
    "atc": {"preset": "atc"},
    "gru and actions": {"context": "gru", "action_conditioning": True},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("decoupled", [False, True])
def test_ppo_trains_there(option: str, decoupled: bool) -> None:
    kwargs = policy_kwargs(**OPTIONS[option])
    model = PPO("CnnPolicy", stamped_vec_env(2), policy_kwargs=kwargs, device="cuda", **PPO_SIZES)
    model.learn(128, callback=InfoNCECallback(decoupled=decoupled))
    (extractor,) = extractors_of(model)
    assert extractor.device.type == "cuda"
    assert extractor.last_infonce["loss"] > 0
    assert 0 <= extractor.last_infonce["floor_random_k4"] <= 1


def test_dqn_trains_there() -> None:
    model = DQN(
        "CnnPolicy",
        stamped_vec_env(1),
        policy_kwargs=policy_kwargs(),
        device="cuda",
        buffer_size=100,
        learning_starts=32,
    )
    model.learn(96)
    assert extractors_of(model)[0].last_infonce["loss"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_isolated_encoder_of_vectors_trains_there(precision: str) -> None:
    kwargs = policy_kwargs(precision=precision)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, policy_kwargs=kwargs, device="cuda")
    model.learn(512)
    (extractor,) = extractors_of(model)
    assert extractor.own_updates is not None
    assert extractor.own_updates.alignment is not None
    rotation = extractor.own_updates.alignment.get_buffer("rotation")
    assert rotation.device.type == "cuda"
    assert not torch.equal(rotation.cpu(), torch.eye(len(rotation)))
