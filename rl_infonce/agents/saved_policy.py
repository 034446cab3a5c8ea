"""The actor of a saved SB3 model, rebuilt from its tensors without running code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_infonce.agents.model_zip import class_name, mapping_of, read_model_zip
from rl_infonce.agents.saved_extractor import NotRebuildableError, encoder_in
from rl_infonce.networks.pixel_encoder import PixelEncoder

_ACTIVATIONS = {"Tanh": nn.Tanh, "ReLU": nn.ReLU}


class RecurrentPolicyError(NotRebuildableError):
    """The policy has a memory, for which its own code would not make up here."""


class SavedPolicyNetwork(nn.Module):
    """A module from uint8 images [B, C, H, W] to the actions' logits (PPO, A2C) or values (DQN).

    `read_policy` makes it; `is_stochastic` says that the scores are logits to sample from.
    """

    def __init__(self, encoder: PixelEncoder, head: nn.Sequential, *, is_stochastic: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.image_shape = encoder.image_shape
        self.is_stochastic = is_stochastic
        last: Any = head[-1]
        self.n_actions: int = last.out_features

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, n_actions] float32."""
        scores: Tensor = self.head(self.encoder(images))
        return scores


def read_policy(path: str | os.PathLike[str]) -> SavedPolicyNetwork:
    """Return the part of a saved model that chooses actions, without executing its pickles.

    The network computes what the loaded model's policy does; `read_encoder` says what is trusted.

    Args:
        path: A file of `model.save` from PPO, A2C, MaskablePPO (its masks are not applied) or DQN
            with discrete actions, `NatureCNN` or `InfoNCEExtractor`, and layers with Tanh or ReLU.

    Raises:
        NotRebuildableError: If the policy is of another kind; the message says which.
        ValueError: If the file is not a model, is damaged, or looks malicious.
        OSError: If the file cannot be read.
    """
    path = Path(path)
    text, tensors = read_model_zip(path)
    if any(name.startswith("lstm_") for name in tensors):
        raise RecurrentPolicyError(
            f"Expected {path} to hold a policy without memory, got a recurrent policy. Only "
            "`rl-infonce evaluate` plays one, from the directory of its run."
        )
    encoder = encoder_in(path, text, tensors)
    space = str(mapping_of(text.get("action_space")).get(":type:"))
    if "Discrete'" not in space or "MultiDiscrete" in space:
        raise _not_rebuildable(path, f"actions {space}")
    if "action_net.weight" in tensors:
        names = [*_numbered(tensors, "mlp_extractor.policy_net."), "action_net"]
        default, is_stochastic = "Tanh", True
    elif "q_net.q_net.0.weight" in tensors:
        names, default, is_stochastic = _numbered(tensors, "q_net.q_net."), "ReLU", False
    else:
        raise _not_rebuildable(path, "a policy without action_net and q_net")
    activation = _activation(path, text, default) if len(names) > 1 else nn.Identity
    head = _layers(path, tensors, names, encoder.features_dim, activation)
    return SavedPolicyNetwork(encoder, head, is_stochastic=is_stochastic).eval()


def _not_rebuildable(path: Path, what: str) -> NotRebuildableError:
    return NotRebuildableError(
        f"Expected {path} to hold a policy that can be rebuilt without executing code (PPO, A2C or "
        f"DQN with discrete actions), got {what}. If you trust whoever made the file, let it "
        "execute its code: --trust-pickle, or SB3's own load."
    )


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[str]:
    """Return the linear layers of an `nn.Sequential` in order."""
    found = re.compile(re.escape(prefix) + r"(\d+)\.weight$")
    numbers = sorted((match[1] for match in map(found.match, tensors) if match), key=int)
    return [f"{prefix}{number}" for number in numbers]


def _activation(path: Path, text: Mapping[str, Any], default: str) -> type[nn.Module]:
    given = mapping_of(text.get("policy_kwargs")).get("activation_fn")
    name = default if given is None else class_name(given)
    if name not in _ACTIVATIONS:
        raise _not_rebuildable(path, f"layers with {given}")
    return _ACTIVATIONS[name]


def _layers(
    path: Path,
    tensors: Mapping[str, Tensor],
    names: list[str],
    n_inputs: int,
    activation: type[nn.Module],
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for name in names:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        if weight.ndim != 2 or weight.shape[1] != n_inputs or bias is None:
            raise _not_rebuildable(path, f"{name} of shape {tuple(weight.shape)}")
        if bias.shape != weight.shape[:1]:
            raise _not_rebuildable(path, f"{name}.bias of shape {tuple(bias.shape)}")
        with torch.device("meta"):  # elsewhere the layer would draw from torch's global stream
            layer = nn.Linear(n_inputs, len(weight))
        layer.load_state_dict({"weight": weight.float(), "bias": bias.float()}, assign=True)
        layers += [layer, activation()]
        n_inputs = len(weight)
    return nn.Sequential(*layers[:-1])
