"""What is said of the algorithms is what RL Zoo and SB3 say."""

import inspect
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN

from rl_infonce.environments.make_vec_env import make_vec_env
from rl_infonce.training.algorithms import (
    algorithm_class,
    check_actions,
    checked_hyperparameters,
    defaults_of,
    network_for,
)
from rl_infonce.training.rl_zoo import ALGORITHMS, N_ENVS, USUAL_HYPERPARAMETERS
from tests.environments.worlds import CONTINUOUS, IMAGES

ACTIONS: list[spaces.Space[Any]] = [
    spaces.Box(-1, 1, (2,)),
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(2),
]


@pytest.mark.thorough
def test_names_are_those_of_rl_zoo() -> None:
    # In a process of its own: rl_zoo3 patches gymnasium's TimeLimit when it is imported.
    show = (
        "import json; from rl_zoo3.utils import ALGOS; "
        "print(json.dumps({name: each.__name__ for name, each in ALGOS.items()}))"
    )
    told = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    theirs = json.loads(told.stdout.splitlines()[-1])
    ours = {name: algorithm_class(name).__name__ for name in ALGORITHMS}
    assert ours.pop("ppo_mask") == "MaskablePPO", "which RL Zoo does not have"
    assert ours == {name: each for name, each in theirs.items() if name in ours}
    assert set(theirs) - set(ours) == {"ars", "ddpg"}


@pytest.mark.parametrize("name", dict.fromkeys(USUAL_HYPERPARAMETERS))
def test_usual_hyperparameters_are_arguments_of_an_algorithm(name: str) -> None:
    assert any(name in inspect.signature(algorithm_class(each)).parameters for each in ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_actions_are_those_that_the_algorithm_supports(name: str) -> None:
    makes: Any = algorithm_class(name)
    for space in ACTIONS:
        try:
            check_actions(name, space, "x")
            fits = True
        except ValueError:
            fits = False
        env = make_vec_env(CONTINUOUS if isinstance(space, spaces.Box) else IMAGES, 1, seed=0)
        env.action_space = space
        policy = network_for(name, env.observation_space, "x").policy
        try:
            makes(policy, env, _init_setup_model=False)
            is_supported = True
        except AssertionError:
            is_supported = False
        assert fits == is_supported, space


def test_an_algorithm_that_does_not_fit_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ValueError, match=r"of pong, Discrete\(6\), got sac. These do: ppo, a2c, .*dqn"
    ):
        check_actions("sac", spaces.Discrete(6), "pong")
    with pytest.raises(ValueError, match=r"got ppo. None of SB3's does"):
        check_actions("ppo", spaces.Text(3), "x")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_layers_on_images_are_those_on_naturecnn(name: str) -> None:
    env = make_vec_env(CONTINUOUS if N_ENVS[name] == 1 and "dqn" not in name else IMAGES, 1, seed=0)
    network = network_for(name, env.observation_space, "x")
    makes: Any = algorithm_class(name)
    own = {} if network.net_arch is None else {"net_arch": list(network.net_arch)}
    models = []
    for kwargs in (
        {"features_extractor_class": NatureCNN},
        {**own, "features_extractor_class": Other},
    ):
        buffer = {"buffer_size": 9} if N_ENVS[name] == 1 else {"n_steps": 128}
        models.append(makes(network.policy, env, policy_kwargs=kwargs, **buffer))
    one, other = ({n: p.shape for n, p in m.policy.named_parameters()} for m in models)
    assert one == other


class Other(NatureCNN):
    """Of another class, as the extractor is."""


def test_the_policy_follows_what_is_observed() -> None:
    image, vector = spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Box(-1, 1, (4,))
    both = spaces.Dict(image=image, vector=vector)
    assert [network_for("sac", each, "x").policy for each in (image, vector, both)] == [
        *("CnnPolicy", "MlpPolicy", "MultiInputPolicy"),
    ]
    assert network_for("ppo_lstm", image, "x").policy == "CnnLstmPolicy"
    assert network_for("crossq", image, "x").policy == "MlpPolicy"
    assert network_for("ppo", vector, "x").net_arch is None
    with pytest.raises(ValueError, match=r"of FrozenLake-v1 to be numbers .* got Discrete\(16\)"):
        network_for("ppo", spaces.Discrete(16), "FrozenLake-v1")


def test_a_missing_sb3_contrib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "tqc", ("no_such_package", "TQC"))
    with pytest.raises(ValueError, match=r'--algo tqc, .*pip install "rl-infonce\[contrib\]"'):
        algorithm_class("tqc")


NO_SCHEDULE = '`learning_rate` as a number or "lin_0.1".* got {!r}'


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("ppo", {"n_epoch": 1}, "n_epochs"),
        ("ppo", {"policy_kwargs": 1}, "hyperparameter"),
        ("ppo", {"_init_setup_model": 1}, "hyperparameter"),
        ("ppo", {"rollout_buffer_class": 1}, "hyperparameter"),
        ("ppo", {"buffer_size": 1}, "hyperparameter"),
        ("dqn", {"n_epochs": 1}, "hyperparameter"),
        ("sac", {"replay_buffer_class": 1}, "hyperparameter"),
        ("td3", {"action_noise": 5}, "hyperparameter"),
        ("ppo", {"clip_range": "lin_-0.1"}, r"`clip_range` to be a finite number >= 0, got -0\.1"),
        ("ppo", {"ent_coef": "lin_0.1"}, r"schedule of \['clip_range'.*got 'ent_coef'"),
        *(
            ("ppo", {"learning_rate": text}, NO_SCHEDULE.format(text))
            for text in ("fast", "lin_fast", "lin_inf", "0.1")
        ),
        ("ppo", {"n_epochs": 2.5}, "`n_epochs` to be an integer, got 2.5"),
        ("ppo", {"n_epochs": 0}, "`n_epochs` to be a finite number >= 1, got 0"),
        ("ppo", {"gamma": "a"}, "`gamma` to be a number, got 'a'"),
        ("ppo", {"gamma": 1.5}, "`gamma` to be a finite number >= 0 and <= 1"),
        ("ppo", {"learning_rate": None}, "`learning_rate` to be a number, got None"),
        ("ppo", {"stats_window_size": -1}, "`stats_window_size` to be"),
        ("ppo", {"use_sde": 1}, "`use_sde` to be"),
        ("ppo", {"ent_coef": "auto"}, "`ent_coef` to be a number"),
        (
            "dqn",
            {"train_freq": 0},
            r"`train_freq` to be an int >= 1, or one with its unit such as \(",
        ),
        ("sac", {"train_freq": (1, "week")}, "got .1, 'week'"),
        ("sac", {"train_freq": 1.5}, "`train_freq` to be"),
        ("sac", {"ent_coef": "auto_0"}, '`ent_coef` to be a finite number, "auto" or'),
        ("sac", {"ent_coef": "auto_x"}, "got 'auto_x'"),
        ("sac", {"target_entropy": "auto_0.1"}, '`target_entropy` to be a finite number or "auto"'),
        ("sac", {"ent_coef": "autos"}, "got 'autos'"),
    ],
)
def test_hyperparameters_that_are_none_are_refused(
    algorithm: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        checked_hyperparameters(algorithm, given)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyperparameter_has_a_kind_which_its_default_is_of(name: str) -> None:
    found = {own for own in defaults_of(name) if legal(name, own)}
    assert "gamma" in found
    usual = {own: defaults_of(name)[own] for own in found}
    assert checked_hyperparameters(name, usual) == usual
    for own in found:
        with pytest.raises((ValueError, TypeError), match=f"`{own}`"):
            checked_hyperparameters(name, {own: object()})


def legal(algorithm: str, name: str) -> bool:
    try:
        checked_hyperparameters(algorithm, {name: defaults_of(algorithm)[name]})
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("buffer_size", 1e5, 100_000),
        ("batch_size", 64.0, 64),
        ("train_freq", 4.0, 4),
        ("train_freq", [1, "episode"], (1, "episode")),
        ("gradient_steps", -1, -1),
        ("ent_coef", "auto_0.1", "auto_0.1"),
        ("ent_coef", 0.1, 0.1),
        ("target_entropy", -2, -2),
        ("target_entropy", "auto", "auto"),
        ("learning_rate", "lin_1e-3", "lin_1e-3"),
        ("tau", 1, 1),
    ],
)
def test_hyperparameters_come_as_sb3_takes_them(name: str, given: Any, taken: Any) -> None:
    checked = checked_hyperparameters("sac", {name: given})
    assert checked == {name: taken}
    assert type(checked[name]) is type(taken)
