"""A critic of SAC that also sees which features its action leads to, as that of TD7 does.

The features after the action are what the loss predicts: those of the state, moved on by the
loss's own predictor (Fujimoto et al. 2023, "For SALE", section 4.1). Left out are their layer of
the critic's own for state and action, their clipped target and their prioritised replay. No
gradient of RL reaches encoder or predictor, while that with respect to the action does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from gymnasium import spaces
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor, nn

from rl_infonce import InfoNCEExtractor


class StateActionCritic(ContinuousCritic):
    """Q networks of what a policy sees, the features after the action, and the action."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        net_arch: list[int],
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        **settings: Any,
    ) -> None:
        assert isinstance(features_extractor, InfoNCEExtractor)  # noqa: S101 (a study's own)
        n_added = features_extractor.encoder.features_dim
        super().__init__(
            observation_space,
            action_space,
            net_arch,
            features_extractor,
            features_dim + n_added,
            **settings,
        )

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Return what each network makes of observations and actions."""
        inputs = self._inputs(obs, actions)
        return tuple(network(inputs) for network in self.q_networks)

    def q1_forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return what the first network makes of them."""
        return self.q_networks[0](self._inputs(obs, actions))  # type: ignore[no-any-return]

    def _inputs(self, obs: Any, actions: Tensor) -> Tensor:
        seen = self.extract_features(obs, self.features_extractor).detach()
        following = next_features(self.features_extractor, seen, actions)
        return torch.cat([seen, following, actions], dim=1)


def next_features(extractor: nn.Module, seen: Tensor, actions: Tensor) -> Tensor:
    """Return the normalised features [B, D] after actions [B, A], from what a policy sees."""
    assert isinstance(extractor, InfoNCEExtractor)  # noqa: S101 (a study's own)
    predictor = extractor.infonce.future
    assert predictor is not None  # noqa: S101 (the preset of vectors has one)
    fixed = {name: each.detach() for name, each in predictor.named_parameters()}
    features = seen[:, -extractor.encoder.features_dim :]
    moved = torch.func.functional_call(predictor, fixed, (actions[:, None],), {"initial": features})
    return F.layer_norm(moved[:, 0], moved.shape[-1:])


class StateActionPolicy(SACPolicy):
    """SAC's policy with that critic; actor and critic share the extractor."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "share_features_extractor": True})

    def make_critic(
        self, features_extractor: BaseFeaturesExtractor | None = None
    ) -> StateActionCritic:
        """Return a critic, as SAC asks for it."""
        settings = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return StateActionCritic(**settings).to(self.device)
