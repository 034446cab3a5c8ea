"""Read all that the next step of an SB3 model depends on, and set it in another model."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common import callbacks as sb3_callbacks
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch.optim import Optimizer

from rl_infonce.files.state_file import can_pack
from rl_infonce.resuming.action_noise import get_noise_state, noise_words, set_noise_state
from rl_infonce.resuming.env_state import (
    UnknownStateError,
    get_env_state,
    get_moments,
    has_own_state,
    normalizers,
    set_env_state,
    set_moments,
    wrapper_settings,
)
from rl_infonce.runs.random_streams import get_random_streams, n_gpus, set_random_streams
from rl_infonce.sb3.extractor import InfoNCEExtractor

_COUNTERS = (
    "num_timesteps",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_n_updates",
    "_episode_num",
    "_n_calls",
    "_current_progress_remaining",
    "exploration_rate",
)
_OBSERVED = ("_last_obs", "_last_episode_starts", "_last_original_obs")
_LSTM = ("_last_lstm_states",)
_STATISTICS = ("ep_info_buffer", "ep_success_buffer")
_LOGGED = ("name_to_value", "name_to_count", "name_to_excluded")
_PLAIN = (bool, int, float, str)
_STRUCTURED = (
    *("policy_kwargs", "learning_rate", "clip_range", "clip_range_vf", "train_freq"),
    *("replay_buffer_class", "replay_buffer_kwargs"),
)
_NORMALIZATION = (
    *("training", "norm_obs", "norm_obs_keys", "norm_reward"),
    *("clip_obs", "clip_reward", "gamma", "epsilon"),
)
_N_NORMALIZERS = "number of VecNormalize"
_OPTIMIZER = "policy_kwargs.optimizer_class"
_NEED_MOMENTS = ("amsgrad", "centered", "momentum")
"""Settings of torch's optimizers with which they keep more of former gradients."""
_NOT_SETTINGS = {*_COUNTERS, "start_time", "verbose", "tensorboard_log", "_custom_logger", "device"}
_OF_CALLBACKS: dict[type, tuple[str, ...]] = {
    sb3_callbacks.EvalCallback: (
        *("best_mean_reward", "last_mean_reward", "evaluations_results"),
        *("evaluations_timesteps", "evaluations_length", "evaluations_successes"),
    ),
    sb3_callbacks.EveryNTimesteps: ("last_time_trigger",),
    sb3_callbacks.StopTrainingOnMaxEpisodes: ("n_episodes",),
    sb3_callbacks.StopTrainingOnNoModelImprovement: (
        *("last_best_mean_reward", "no_improvement_evals"),
    ),
}


def get_run_state(model: BaseAlgorithm, callbacks: Iterable[BaseCallback] = ()) -> dict[str, Any]:
    """Return the state of a run between two rollouts, except for a replay buffer's rows.

    The state holds weights, target networks, heads, optimizers, counters, schedules' progress,
    random streams (the process's, the action space's, those of pairs), observations, the
    environments, running means of `VecNormalize`, statistics of episodes, callbacks, and what the
    logger has not written yet. Its "inexact" lists in words what could not be read.
    """
    inexact = []
    try:
        env = None if model.env is None else get_env_state(model.env)
    except UnknownStateError as error:
        env = None
        inexact.append(str(error))
    try:
        noise = get_noise_state(_noise(model))
    except UnknownStateError as error:
        noise = []
        inexact.append(str(error))
    return {
        "settings": model_settings(model),
        "parameters": model.get_parameters(),
        "variables": {name: recursive_getattr(model, name) for name in _variables(model)},
        "counters": _attributes(model, _COUNTERS),
        "observed": _attributes(model, _OBSERVED),
        "statistics": _statistics(model),
        "lstm": _attributes(model, _LSTM),
        "exploration": _exploration_matrices(model),
        "action_noise": noise,
        "env": env,
        "normalization": [get_moments(each) for each in normalizers(model.env)],
        "inexact": [*inexact, *_unread_evaluations(callbacks)],
        "streams": get_random_streams(),
        "action_space": model.action_space.np_random.bit_generator.state,
        "extractors": [each.get_state() for each in _extractors(model)],
        "callbacks": [_callback_state(each) for each in flat(callbacks)],
        "logger": _pending(model),
    }


def set_run_state(model: BaseAlgorithm, state: Mapping[str, Any], *, exact: bool = True) -> None:
    """Set the state of a model that was built as the saved one, before `learn` goes on.

    What `learn` itself changes before its first rollout is set there, by `set_streams`. Without
    `exact`, the environment begins with new episodes, which are normalised as the former ones were,
    and optimizers have the model's own settings.
    """
    # Given a name instead of a dict, SB3 would load a file of that name.
    parameters = dict(state["parameters"]) if exact else _with_own_settings(model, state)
    model.set_parameters(parameters, exact_match=True, device=model.device)
    for name in _variables(model):
        recursive_getattr(model, name).data.copy_(state["variables"][name])
    _set_attributes(model, state["counters"], _COUNTERS)
    _set_attributes(model, state["statistics"], _STATISTICS)
    # Before the first rollout an isolated encoder makes the updates that are due by its counts.
    for extractor, each in zip(_extractors(model), state["extractors"], strict=False):
        extractor.set_state(each, games_go_on=False)
    if not exact or state["env"] is None or model.env is None:
        set_moments(model.env, state["normalization"])
        model._last_obs = None  # learn() resets the environment
        if model.env is not None:  # other episodes than the first ones
            entropy = None if model.seed is None else [model.seed, model.num_timesteps]
            grown = np.random.SeedSequence(entropy).generate_state(1)
            model.env.seed(int(grown[0] >> 1))
        return
    set_env_state(model.env, state["env"])
    _set_attributes(model, state["observed"], _OBSERVED)
    lstm = {name: _like(getattr(model, name), state["lstm"][name]) for name in state["lstm"]}
    _set_attributes(model, lstm, _LSTM)


def set_streams(
    model: BaseAlgorithm, state: Mapping[str, Any], callbacks: Iterable[BaseCallback] = ()
) -> None:
    """Set the state of random streams, callbacks and logger at the start of the first rollout."""
    extractors = list(_extractors(model))
    if len(extractors) != len(state["extractors"]):
        raise ValueError(
            f"Expected {len(state['extractors'])} InfoNCEExtractors, got {len(extractors)}."
        )
    for extractor, each in zip(extractors, state["extractors"], strict=True):
        extractor.set_state(each, games_go_on=state["env"] is not None)
    former = list(state["callbacks"])
    for callback in flat(callbacks):
        own = next((each for each in former if each["class"] == type(callback).__name__), None)
        if own is not None:  # a callback that was not there before begins with this run
            former.remove(own)
            _set_callback_state(callback, own)
    _set_exploration_matrices(model, state["exploration"])
    set_noise_state(_noise(model), state["action_noise"])  # `learn` makes one per environment
    for name in _LOGGED:
        getattr(model.logger, name).update(state["logger"][name])
    model.action_space.np_random.bit_generator.state = state["action_space"]
    set_random_streams(state["streams"])


def model_settings(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the named settings that decide how a model trains, as JSON with dotted names."""
    plain = {
        name: _plain(value)
        for name, value in vars(model).items()
        if name not in _NOT_SETTINGS and (value is None or type(_plain(value)) in _PLAIN)
    }
    normalization = [_attributes(each, _NORMALIZATION) for each in normalizers(model.env)]
    for each in normalization:
        each["norm_obs_keys"] = sorted(each["norm_obs_keys"] or ())
    return {
        **plain,
        **dict(_leaves("", _attributes(model, _STRUCTURED))),
        **dict(_leaves("VecNormalize", dict(enumerate(normalization)))),
        **dict(_leaves("env", _specs(model.env))),
        _N_NORMALIZERS: len(normalization),
        "action_noise": noise_words(_noise(model)),
        "algorithm": type(model).__name__,
        "policy": type(model.policy).__name__,
        "observation_space": str(model.observation_space),
        "action_space": str(model.action_space),
    }


def _specs(env: VecEnv | None) -> dict[str, Any]:
    """Return ids and arguments of the environments that Gymnasium made in this process."""
    envs = getattr(getattr(env, "unwrapped", None), "envs", None) or ()
    told = [_spec_of(each) for each in envs]
    return {str(index): each for index, each in enumerate(told) if index == 0 or each != told[0]}


def _spec_of(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    spec = env.unwrapped.spec  # that of a wrapper would be kept there, as state
    if spec is None:
        return {}
    arguments = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    with contextlib.suppress(AttributeError):  # without a limit
        arguments["max_episode_steps"] = env.get_wrapper_attr("_max_episode_steps")
    return {"id": spec.id, **arguments, **wrapper_settings(env)}


def _plain(value: Any) -> Any:
    """Return the number of a NumPy scalar, the value of an Enum, and anything else as it is."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a setting by dotted name; what is not a plain value gives its class."""
    value = _plain(value)
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _leaves(f"{name}.{index}", each)
        yield f"{name}.length", len(value)
    elif value is None or type(value) in _PLAIN:
        yield name, value
    elif isinstance(value, FloatSchedule | ConstantSchedule | LinearSchedule):
        yield from _leaves(name, {"schedule": type(value).__name__, **vars(value)})
    else:
        yield name, getattr(value, "__qualname__", type(value).__qualname__)


def differing_settings(model: BaseAlgorithm, state: Mapping[str, Any]) -> list[str]:
    """Return, in words, the settings that differ from those of the state."""
    own = {**model_settings(model), "number of GPUs": n_gpus()}
    former = {**state["settings"], "number of GPUs": len(state["streams"]["cuda"])}
    if own.get(_N_NORMALIZERS) != former.get(_N_NORMALIZERS):  # which says it all
        own, former = (
            {name: value for name, value in each.items() if not name.startswith("VecNormalize.")}
            for each in (own, former)
        )
    return [
        f"{name} is {own.get(name)!r} (was {former.get(name)!r})"
        for name in sorted(own | former)
        if own.get(name) != former.get(name) and _is_decided(name)
    ]


def _is_decided(name: str) -> bool:
    """Return whether the user decides on a setting, which SB3 otherwise updates in training."""
    return not name.startswith("_") or name == "_stats_window_size"


def _variables(model: BaseAlgorithm) -> list[str]:
    """Return the names of tensors outside the policy, e.g. SAC's entropy coefficient."""
    return list(model._get_torch_save_params()[1])


def _with_own_settings(model: BaseAlgorithm, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state's parameters, but settings of optimizers as the model has them.

    Moments of gradients begin anew where such settings cannot go on from the state's.
    """
    parameters = dict(state["parameters"])
    is_same = model_settings(model).get(_OPTIMIZER) == state["settings"].get(_OPTIMIZER)
    for name in model._get_torch_save_params()[0]:
        optimizer = recursive_getattr(model, name)
        if isinstance(optimizer, Optimizer):
            own, former = optimizer.state_dict(), parameters[name]
            pairs = list(zip(own["param_groups"], former["param_groups"], strict=True))
            groups = [{**one, "params": other["params"]} for one, other in pairs]
            fits = is_same and all(_has_moments(one, other) for one, other in pairs)
            parameters[name] = {"state": former["state"], "param_groups": groups} if fits else own
    return parameters


def _has_moments(group: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Return whether an optimizer with former settings kept all that one with new ones reads."""
    return not any(group.get(name) and not former.get(name) for name in _NEED_MOMENTS)


def _attributes(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _set_attributes(owner: Any, values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Set only known names, since a file may name others."""
    known = set(names)
    for name, value in values.items():
        if name in known:
            setattr(owner, name, value)


def _like(own: Any, value: Any) -> Any:
    """Return nested tuples of tensors with the types and on the devices of `own`."""
    if isinstance(own, torch.Tensor):
        return value.to(own.device)
    items = [_like(a, b) for a, b in zip(own, value, strict=True)]
    return type(own)(*items) if hasattr(own, "_fields") else tuple(items)


def _extractors(model: BaseAlgorithm) -> Iterable[InfoNCEExtractor]:
    return (each for each in model.policy.modules() if isinstance(each, InfoNCEExtractor))


def _noise(model: BaseAlgorithm) -> ActionNoise | None:
    return getattr(model, "action_noise", None)


def _statistics(model: BaseAlgorithm) -> dict[str, deque[Any] | None]:
    """Return the infos and successes of the last episodes, without what no checkpoint can hold.

    SB3 reads `r` and `l` of an info, to which wrappers may add anything.
    """
    infos, successes = model.ep_info_buffer, model.ep_success_buffer
    if infos is None or successes is None:  # before the first `learn`
        return dict.fromkeys(_STATISTICS)
    kept = ({key: each for key, each in info.items() if can_pack({key: each})} for info in infos)
    return {
        "ep_info_buffer": deque(
            (each for each in kept if "r" in each and "l" in each), infos.maxlen
        ),
        "ep_success_buffer": deque(filter(can_pack, successes), successes.maxlen),
    }


def _exploration_matrices(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    names = ("exploration_mat", "exploration_matrices")
    return _attributes(_state_dependent_noise(model), names)


def _set_exploration_matrices(model: BaseAlgorithm, matrices: Mapping[str, torch.Tensor]) -> None:
    for name, matrix in matrices.items():
        setattr(_state_dependent_noise(model), name, matrix.to(model.device))


def _state_dependent_noise(model: BaseAlgorithm) -> Any:
    if not getattr(model, "use_sde", False):
        return None
    return getattr(getattr(model, "actor", None) or model.policy, "action_dist", None)


def flat(callbacks: Iterable[BaseCallback]) -> Iterable[BaseCallback]:
    """Yield callbacks and those inside them."""
    for callback in callbacks:
        if isinstance(callback, sb3_callbacks.CallbackList):
            yield from flat(callback.callbacks)
            continue
        yield callback
        inner = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
        yield from flat({id(each): each for each in inner if each is not None}.values())


def _callback_state(callback: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"class": type(callback).__name__, "n_calls": callback.n_calls}
    if has_own_state(callback):
        return {**state, "own": callback.get_state()}
    for kind, names in _OF_CALLBACKS.items():
        if isinstance(callback, kind):
            state["numbers"] = _attributes(callback, names)
    if isinstance(callback, sb3_callbacks.EvalCallback):
        with contextlib.suppress(UnknownStateError):  # see `_unread_evaluations`
            state["env"] = get_env_state(callback.eval_env)
    return state


def _set_callback_state(callback: Any, state: Mapping[str, Any]) -> None:
    callback.n_calls = state["n_calls"]
    if "own" in state:
        callback.set_state(state["own"])
    for names in _OF_CALLBACKS.values():
        _set_attributes(callback, state.get("numbers", {}), names)
    if "env" in state:
        set_env_state(callback.eval_env, state["env"])


def _unread_evaluations(callbacks: Iterable[BaseCallback]) -> Iterator[str]:
    """Yield why evaluations change the training in ways that no state holds.

    They draw from torch's stream where actions are sampled, and their results may end `learn`.
    """
    for each in flat(callbacks):
        if isinstance(each, sb3_callbacks.EvalCallback):
            tells = each.callback is not None or each.callback_on_new_best is not None
            try:
                if tells or not each.deterministic:
                    get_env_state(each.eval_env)
            except UnknownStateError as error:
                yield f"{type(each).__name__}: {error}"


def _pending(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the numbers that the logger has not written yet."""
    logger = getattr(model, "_logger", None)
    if logger is None:
        return {name: {} for name in _LOGGED}
    numbers = {
        name
        for name, value in logger.name_to_value.items()
        if isinstance(value, int | float | str | np.generic) and can_pack(value)
    }
    return {
        each: {name: value for name, value in getattr(logger, each).items() if name in numbers}
        for each in _LOGGED
    }
