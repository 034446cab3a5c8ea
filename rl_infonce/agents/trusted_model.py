"""The features of a saved SB3 model whose own code may run."""

from __future__ import annotations

import os
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from torch import Tensor, nn

from rl_infonce.agents.features import acting_extractor, feature_function
from rl_infonce.device import seeded_on_cpu

_NEEDED = {"observation_space", "action_space", "policy_class", "policy_kwargs"}


class TrustedEncoder(nn.Module):
    """A module that returns the features a policy acts on, whatever the class of its extractor.

    `image_shape` is (C, H, W), `features_dim` the number of features D.
    """

    def __init__(self, policy: BasePolicy) -> None:
        super().__init__()
        self.policy = policy
        self.image_shape = tuple(policy.observation_space.shape or ())
        extractor = acting_extractor(policy)
        self.features_dim = extractor.features_dim
        self.extractor_name = type(extractor).__name__

    def forward(self, images: Tensor) -> Tensor:
        """Return features [K, D] of images [K, C, H, W], uint8 in 0..255."""
        return feature_function(self.policy)(images)


def read_trusted_encoder(
    path: str | os.PathLike[str], *, untrained_seed: int | None = None
) -> TrustedEncoder:
    """Return the features of a saved model, which SB3 itself loads.

    This executes the pickles in the file with all your rights: do it only with files from
    people whom you would let use your computer. `read_encoder` needs no trust. With
    `untrained_seed`, the weights are new, as the policy's class draws them, instead of the
    saved ones.
    """
    data, parameters = _load(path)
    space = data["observation_space"]
    if not isinstance(space, spaces.Box) or space.dtype != "uint8" or len(space.shape) != 3:
        raise TypeError(f"Expected the model in {path} to observe uint8 images, got {space}.")
    kwargs = dict(data["policy_kwargs"] or {})
    if data.get("use_sde"):
        kwargs.setdefault("use_sde", True)
    with seeded_on_cpu(untrained_seed or 0):  # layers draw from torch's global stream
        try:
            arguments = (space, data["action_space"], lambda _progress: 1e-4)  # SB3 asks for a rate
            policy: BasePolicy = data["policy_class"](*arguments, **kwargs)
            if untrained_seed is None:
                policy.load_state_dict(parameters["policy"])
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            # torch names every tensor, each on its own line
            reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
            raise ValueError(
                f"Expected the classes of {path} to be unchanged since it was saved, got: {reason}"
            ) from error
    policy.set_training_mode(False)
    return TrustedEncoder(policy).eval()


def _load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data and the parameters of a saved model, after executing its pickles."""
    try:
        data, parameters, _ = load_from_zip_file(os.fspath(path), device="cpu")
    except ImportError as error:
        raise ValueError(
            f"Expected to import the classes of {path}, got: {error}. Add the folder of their "
            "module to PYTHONPATH."
        ) from error
    if data is None or "policy" not in parameters:
        raise ValueError(f"Expected {path} to hold an SB3 model, got a zip file without a policy.")
    missing = sorted(_NEEDED - data.keys())
    if missing:
        raise ValueError(
            f"Expected to rebuild {', '.join(missing)} of {path}, got an error that SB3's warning "
            "names. Was a class renamed or moved since the model was saved?"
        )
    return data, parameters
