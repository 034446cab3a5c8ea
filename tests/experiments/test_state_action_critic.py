"""A critic that sees the features after an action is trained, and trains no encoder."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stable_baselines3 import SAC

from rl_infonce import InfoNCEExtractor
from tests.experiments.loading import load

script = load("state_action_critic.py")


def trained(n_steps: int = 70, **settings: object) -> Any:
    kwargs = {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": {"n_pairs": 16, **settings},
    }
    model = SAC(
        script.StateActionPolicy,
        "Pendulum-v1",
        learning_starts=50,
        policy_kwargs=kwargs,
        seed=0,
        device="cpu",
    )
    return model.learn(n_steps)


@pytest.mark.parametrize("objective", ["infonce", "self_prediction"])
def test_the_critic_sees_what_the_loss_predicts_of_its_action(objective: str) -> None:
    model = trained(objective=objective)
    critic, extractor = model.critic, model.critic.features_extractor
    assert extractor.last_infonce["loss"] > 0
    observations = torch.as_tensor(model.replay_buffer.observations[:5, 0])
    actions = torch.linspace(-1, 1, 5)[:, None].requires_grad_()
    seen = extractor(observations)
    features = seen[:, -extractor.encoder.features_dim :]
    moved = extractor.infonce.future(actions[:, None], initial=features)[:, 0]
    expected = torch.cat([seen, F.layer_norm(moved, moved.shape[1:]), actions], dim=1)
    found = critic(observations, actions)
    for values, network in zip(found, critic.q_networks, strict=True):
        torch.testing.assert_close(values, network(expected))
    torch.testing.assert_close(critic.q1_forward(observations, actions), found[0])


def test_no_gradient_of_rl_reaches_encoder_or_predictor() -> None:
    model = trained(55)
    extractor = model.critic.features_extractor
    assert model.actor.features_extractor is extractor
    extractor.zero_grad()
    actions = torch.zeros(4, 1, requires_grad=True)
    observations = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # what is left is the action's share in the features after it
        model.critic.q_networks[0][0].weight[:, -1] = 0
    values = model.critic.q1_forward(observations, actions)
    (gradient,) = torch.autograd.grad(values.sum(), actions, retain_graph=True)
    assert gradient.abs().min() > 0
    torch.autograd.backward(values.sum())
    assert all(each.grad is None or not each.grad.any() for each in extractor.parameters())
