"""An encoder of the user's own under the loss, for images and vectors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from rl_infonce import InfoNCECombinedExtractor, InfoNCEExtractor
from rl_infonce.agents.features import feature_function
from rl_infonce.agents.pretrained import freeze_encoder
from rl_infonce.agents.saved_extractor import NotRebuildableError, read_encoder
from rl_infonce.agents.trusted_model import read_trusted_encoder
from rl_infonce.sb3 import reporting
from rl_infonce.sb3.custom_encoder import CustomImageEncoder
from rl_infonce.sb3.diagnostics import redrawn_network
from rl_infonce.sb3.update_counts import DETAILS_FREQ
from tests.further import further
from tests.sb3.fakes import IMAGES, VECTORS
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    assert_same_weights,
    extractors_of,
    noise_images,
    record_logger,
    saved,
    streams,
    weights_of,
)


class Strided(BaseFeaturesExtractor):
    """An extractor as SB3's documentation has them: one convolution and one layer."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 24) -> None:
        super().__init__(observation_space, features_dim)
        self.layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[0], 8, 6, 6),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(8 * 6 * 6, features_dim),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(observations)
        return features


def with_batch_norm(space: spaces.Box) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(space.shape[0], 8, 6, 6), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    )


def of_vectors(space: spaces.Box) -> nn.Sequential:
    return nn.Sequential(nn.Linear(space.shape[0], 32), nn.Tanh(), nn.Linear(32, 12))


def kwargs_of(encoder: Any, **settings: Any) -> dict[str, Any]:
    return {
        "features_extractor_class": InfoNCEExtractor,
        "features_extractor_kwargs": {"encoder": encoder, "n_pairs": 16, **settings},
        "net_arch": [],
    }


@pytest.mark.parametrize("name", ["PPO", "SAC", further("QRDQN"), further("DQN"), further("TQC")])
def test_an_encoder_of_images_trains_with_both_losses(name: str) -> None:
    model = ALGORITHMS[name](kwargs_of(Strided))
    first = extractors_of(model)[0]
    before = weights_of(first)
    numbers = record_logger(model)
    model.learn(N_STEPS * 2)
    assert first.features_dim == 24
    assert any("infonce/" in tag and "floor_random" in tag for tag in numbers)
    assert first.last_infonce["loss"] > 0
    moved = weights_of(first)
    assert not torch.equal(moved["network.layers.0.weight"], before["network.layers.0.weight"])


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_coefficient_0_is_sb3_with_the_same_encoder(name: str) -> None:
    own = {"features_extractor_class": Strided, "net_arch": []}
    plain = ALGORITHMS[name](own)
    plain.learn(N_STEPS)
    after_plain = streams()
    model = ALGORITHMS[name](kwargs_of(Strided, infonce_coef=0.0))
    model.learn(N_STEPS)
    renamed = {
        tag.replace("features_extractor.network.", "features_extractor."): tensor
        for tag, tensor in weights_of(model.policy).items()
        if "infonce." not in tag
    }
    theirs = weights_of(plain.policy)
    assert renamed.keys() == theirs.keys()
    assert all(torch.equal(renamed[tag], theirs[tag]) for tag in theirs)
    assert streams() == after_plain


@pytest.mark.parametrize("name", ["PPO", "SAC", further("TD3"), further("RecurrentPPO")])
def test_the_loss_alone_trains_an_encoder_of_vectors(name: str) -> None:
    model = VECTOR_ALGORITHMS[name](kwargs_of(of_vectors))
    first = extractors_of(model)[0]
    before = weights_of(first)
    model.learn(N_STEPS * 2)
    assert first.features_dim == 12 + 5 * bool(first.settings.with_observation)
    assert first.is_isolated
    assert first.settings.input_sparsity == 0
    assert first.last_infonce["loss"] > 0
    assert not torch.equal(weights_of(first)["mlp.0.weight"], before["mlp.0.weight"])


def test_the_policy_reads_the_average_of_an_encoder_of_vectors() -> None:
    model = VECTOR_ALGORITHMS["PPO"](kwargs_of(of_vectors, select_inputs=False))
    model.learn(N_STEPS * 2)
    (extractor,) = extractors_of(model)
    own, vectors = extractor.own_updates, torch.randn(6, 5)
    assert own is not None
    assert own.alignment is not None
    averages = own.averages()
    assert averages is not None
    first, _, last = of_vectors(VECTORS).children()
    prepared = extractor.encoder.prepared(vectors)
    for layer, place in ((first, "0"), (last, "2")):
        layer.load_state_dict({n: averages[f"mlp.{place}.{n}"] for n in ("weight", "bias")})
    with torch.no_grad():
        expected = last(torch.tanh(first(prepared)))
        read = extractor(vectors)
    assert torch.allclose(read[:, 5:], own.alignment(expected), atol=1e-5)


@pytest.mark.parametrize("preset", ["atc", further("curl")])
def test_an_averaged_encoder_of_positives_follows_the_users(preset: str) -> None:
    model = ALGORITHMS["PPO"](kwargs_of(Strided, preset=preset))
    model.learn(N_STEPS)
    (extractor,) = extractors_of(model)
    assert extractor.target is not None
    assert set(extractor.target.averages()) == {
        f"network.layers.{layer}.{part}" for layer in (0, 3) for part in ("weight", "bias")
    }


def test_pairs_of_the_minibatch_go_through_the_users_encoder() -> None:
    """Whose one forward is that of RL, but for the futures that the minibatch lacks."""
    seen: list[int] = []

    class Counted(Strided):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                seen.append(len(observations))
            return super().forward(observations)

    rows = []
    for source in ("minibatch", "buffer"):
        seen.clear()
        ALGORITHMS["PPO"](kwargs_of(Counted, pairs_from=source)).learn(N_STEPS)
        rows.append(sum(seen))
    assert rows[0] < rows[1]


def test_a_model_with_the_users_encoder_is_saved_and_loaded(tmp_path: Path) -> None:
    model = ALGORITHMS["PPO"](kwargs_of(Strided))
    model.learn(N_STEPS)
    loaded = type(model).load(saved(tmp_path, model), env=model.get_env())
    assert_same_weights(loaded.policy, model.policy, with_own=True)
    images = noise_images(4)
    with pytest.raises(NotRebuildableError, match="--trust-pickle"):
        read_encoder(tmp_path / "model.zip")
    read = read_trusted_encoder(tmp_path / "model.zip")(images)
    assert torch.equal(read, feature_function(model)(images))
    loaded.learn(N_STEPS)


def test_an_untrained_copy_is_drawn_anew_and_tells_images_apart() -> None:
    network = with_batch_norm(IMAGES)
    first, norm = network[0], network[1]
    images = noise_images(16).float() / 255
    norm.running_mean = torch.full((8,), 1e6)
    state = torch.get_rng_state()
    copy = redrawn_network(network, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(copy.get_parameter("0.weight"), first.get_parameter("weight"))
    assert copy(images).std(dim=0).max() > 0.01


def vectors_with_norm(space: spaces.Box) -> nn.Sequential:
    return nn.Sequential(nn.Linear(space.shape[0], 12), nn.BatchNorm1d(12), nn.ELU())


@pytest.mark.parametrize("name", ["PPO", further("SAC")])
@pytest.mark.parametrize("make", [with_batch_norm, vectors_with_norm])
def test_batch_norm_counts_the_batches_of_the_loss(make: Any, name: str) -> None:
    build = (ALGORITHMS if make is with_batch_norm else VECTOR_ALGORITHMS)[name]
    counted = []
    for coef in (0.01, 0.0):
        model = build(kwargs_of(make, infonce_coef=coef, isolated=False))
        model.learn(N_STEPS * 2)
        buffers = dict(extractors_of(model)[0].named_buffers())
        counted += [int(n) for tag, n in buffers.items() if tag in _COUNTS]
    assert counted[0] > counted[1]


_COUNTS = {"network.1.num_batches_tracked", "mlp.1.num_batches_tracked"}


def test_a_network_that_keeps_an_activation_trains_without_the_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[nn.Module] = []

    def noted(network: nn.Module, seed: int) -> nn.Module:
        tried.append(network)
        return redrawn_network(network, seed)

    monkeypatch.setattr(reporting, "redrawn_network", noted)

    class Keeping(Strided):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            self.kept = super().forward(observations)
            return self.kept

    model = ALGORITHMS["PPO"](kwargs_of(Keeping))
    numbers = record_logger(model)
    with pytest.warns(UserWarning, match="floor_random is left out: a Keeping cannot be copied"):
        model.learn(N_STEPS * 3)
    assert any("floor_pixels" in tag for tag in numbers)
    assert not any("floor_random" in tag for tag in numbers)
    assert extractors_of(model)[0]._session.counts.n_updates > DETAILS_FREQ  # asked for twice
    assert len(tried) == 1


@pytest.mark.parametrize("build", [ALGORITHMS["PPO"], VECTOR_ALGORITHMS["PPO"]])
def test_freezing_reaches_the_users_encoder(build: Any) -> None:
    images = build is ALGORITHMS["PPO"]
    model = build(kwargs_of(Strided if images else of_vectors, infonce_coef=0.0))
    freeze_encoder(model)
    (extractor,) = extractors_of(model)
    before = {name: each.clone() for name, each in extractor.encoder.named_parameters()}
    model.learn(N_STEPS * 2)
    for name, parameter in extractor.encoder.named_parameters():
        assert torch.equal(parameter, before[name])


def test_each_image_of_a_dictionary_gets_an_encoder_of_its_own() -> None:
    space = spaces.Dict(left=IMAGES, right=IMAGES, speed=VECTORS)
    extractor = InfoNCECombinedExtractor(space, encoder=Strided)
    encoders = [extractor.extractors[key].encoder for key in ("left", "right")]
    assert all(isinstance(each, CustomImageEncoder) for each in encoders)
    assert encoders[0] is not encoders[1]
    assert extractor.features_dim == 2 * 24 + 5


def _maps(space: spaces.Box) -> nn.Module:
    return nn.Conv2d(space.shape[0], 8, 6, 6)


@pytest.mark.parametrize(
    ("space", "arguments", "error", "message"),
    [
        (IMAGES, {"encoder": Strided(IMAGES)}, TypeError, "got a Strided itself"),
        (IMAGES, {"encoder": lambda space: 3}, TypeError, "got int"),
        (IMAGES, {"encoder": _maps}, ValueError, r"got \(1, 8, 6, 6\) from Conv2d. Flatten"),
        (IMAGES, {"encoder": 3}, TypeError, "`encoder` to be one of nature, impala, or a function"),
        (IMAGES, {"encoder": "resnet"}, ValueError, "`encoder` to be one of"),
        (IMAGES, {"encoder": Strided, "features_dim": 9}, ValueError, "`features_dim` with the"),
        (IMAGES, {"encoder": Strided, "activation": "elu"}, ValueError, "`activation` with the"),
        (IMAGES, {"encoder": Strided, "preset": "spatial_cpc"}, ValueError, "with the preset that"),
        (IMAGES, {"encoder": Strided, "channels_last": True}, ValueError, "`channels_last` with"),
        (IMAGES, {"encoder": lambda space: nn.Flatten()}, ValueError, "a Flatten without any"),
        (VECTORS, {"encoder": of_vectors, "input_sparsity": 0.1}, ValueError, "`input_sparsity`"),
        (VECTORS, {"encoder": "nature"}, ValueError, "`encoder` to fit vectors"),
        (
            VECTORS,
            {"encoder": lambda space: nn.Linear(99, 8)},
            ValueError,
            r"\(1, 5\), got a Linear",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    space: spaces.Box, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        InfoNCEExtractor(space, action_space=spaces.Discrete(3), **arguments)


def test_features_by_their_place_are_refused_also() -> None:
    with pytest.raises(ValueError, match="`features_dim` with the encoders"):
        InfoNCEExtractor(IMAGES, 64, encoder=Strided)


def with_batch_norm_of_vectors(space: spaces.Box) -> nn.Sequential:
    return nn.Sequential(nn.Linear(space.shape[0], 16), nn.BatchNorm1d(16), nn.Linear(16, 12))


def with_dropout(space: spaces.Box) -> nn.Sequential:
    return nn.Sequential(nn.Linear(space.shape[0], 16), nn.Dropout(0.5), nn.Linear(16, 12))


@pytest.mark.parametrize("make", [with_batch_norm_of_vectors, with_dropout])
def test_rl_trains_on_the_features_that_the_rollout_had(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = VECTOR_ALGORITHMS["PPO"](kwargs_of(make), batch_size=64, n_epochs=1)
    evaluate, likelihoods = type(model.policy).evaluate_actions, list[torch.Tensor]()

    def noting(policy: Any, *given: Any) -> Any:
        found = evaluate(policy, *given)
        likelihoods.append(found[1].detach())
        return found

    monkeypatch.setattr(type(model.policy), "evaluate_actions", noting)
    for _ in range(3):
        model.learn(64)  # one minibatch, before any step of RL
        noted = torch.as_tensor(model.rollout_buffer.log_probs).flatten()
        torch.testing.assert_close(likelihoods[-1].sort().values, noted.sort().values)
    (extractor,) = extractors_of(model)
    assert extractor.last_infonce["loss"] > 0
    assert not any(part.training for part in extractor.encoder.children())


@pytest.mark.parametrize("infonce_coef", [0, 0.01])
def test_a_part_that_is_replaced_takes_the_mode_of_the_others(infonce_coef: float) -> None:
    actions = spaces.Discrete(2)
    extractor: Any = InfoNCEExtractor(VECTORS, infonce_coef=infonce_coef, action_space=actions)
    for mode in (True, False, False, True):
        extractor.mlp = nn.Dropout().train(not mode)
        extractor.train(mode)
        assert extractor.training is mode
        is_isolated = infonce_coef > 0
        assert extractor.mlp.training is (mode and not is_isolated)
