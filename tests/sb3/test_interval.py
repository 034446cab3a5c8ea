"""The loss as a part of every so many of RL's updates."""

import math
from collections import defaultdict
from typing import Any

import pytest
from torch import Tensor

from rl_infonce import InfoNCECallback
from rl_infonce.sb3.attach import Attachment
from tests.further import further
from tests.sb3.test_gradients import first_gradients
from tests.sb3.worlds import (
    ALGORITHMS,
    N_STEPS,
    VECTOR_ALGORITHMS,
    extractors_of,
    policy_kwargs,
)

INTERVAL = 3


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> dict[Attachment, list[bool]]:
    """Whether each of RL's passes carried a gradient of the loss, by whose they were."""
    passes: dict[Attachment, list[bool]] = defaultdict(list)
    attach = Attachment.attach

    def noted(self: Attachment, features: Tensor, auxiliary: Any, *rest: Any) -> Tensor:
        passes[self].append(auxiliary is not None)
        return attach(self, features, auxiliary, *rest)

    monkeypatch.setattr(Attachment, "attach", noted)
    return passes


@pytest.mark.parametrize("pairs_from", ["buffer", "minibatch"])
@pytest.mark.parametrize("name", ["PPO", "DQN", further("QRDQN"), further("MaskablePPO")])
def test_one_of_so_many_updates_carries_the_loss(
    name: str, pairs_from: str, carried: dict[Attachment, list[bool]]
) -> None:
    kwargs = policy_kwargs(infonce_interval=INTERVAL, pairs_from=pairs_from)
    ALGORITHMS[name](kwargs).learn(2 * N_STEPS)
    (passes,) = carried.values()
    assert len(passes) > 2 * INTERVAL
    assert passes == [n % INTERVAL == 0 for n in range(len(passes))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SAC", further("TQC"), further("TD3")])
def test_actor_and_critic_take_turns_of_their_own(name: str) -> None:
    model = ALGORITHMS[name](policy_kwargs(infonce_interval=INTERVAL)).learn(2 * N_STEPS)
    for extractor in extractors_of(model):
        counts = extractor._session.counts
        assert counts.n_turns > 2 * INTERVAL
        assert counts.n_updates == math.ceil(counts.n_turns / INTERVAL)


@pytest.mark.parametrize("name", ["DQN", further("SAC"), further("TD3")])
def test_an_isolated_encoder_has_its_updates_after_one_of_so_many(name: str) -> None:
    model = VECTOR_ALGORITHMS[name](policy_kwargs(infonce_interval=INTERVAL, encoder_updates=2))
    model.learn(2 * N_STEPS, callback=InfoNCECallback())
    counts = extractors_of(model)[0]._session.counts
    n_turns = model._n_updates // INTERVAL
    assert n_turns > 2
    assert counts.n_updates == 2 * n_turns
    assert counts.n_host_updates == n_turns * INTERVAL


def test_in_the_others_rl_trains_as_without_the_loss() -> None:
    def second_gradients(**settings: Any) -> dict[str, Tensor]:
        model = ALGORITHMS["DQN"](policy_kwargs(**settings))
        for extractor in extractors_of(model):
            extractor._session.counts.n_turns = 1
        return first_gradients(model, model.policy.optimizer)

    plain = second_gradients(infonce_coef=0.0)
    between = second_gradients(infonce_coef=1.0, infonce_interval=2)
    for name, gradient in plain.items():
        assert (between[name] == gradient).all(), name


def test_updates_that_are_not_rls_have_no_interval() -> None:
    with pytest.raises(ValueError, match=r"`infonce_interval` 1 with an isolated .*encoder_up"):
        ALGORITHMS["PPO"](policy_kwargs(infonce_interval=2, isolated=True))
    with pytest.raises(ValueError, match="`infonce_interval` 1 with auto_bind=False, got 2"):
        ALGORITHMS["PPO"](policy_kwargs(infonce_interval=2, auto_bind=False))
    model = ALGORITHMS["PPO"](policy_kwargs(infonce_interval=2))
    with pytest.raises(ValueError, match="`infonce_interval` 1 with decoupled updates, got 2"):
        model.learn(64, callback=InfoNCECallback(decoupled=True))
