"""Observations of any environment with labels of its own, which stand in its infos."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage, unwrap_vec_normalize

from rl_infonce.checks import check_count
from rl_infonce.probing import LabelledObservations
from rl_infonce.probing.data import N_CLASSES

Numbers = dict[str, float | int]

_PATIENCE = 100
"""Steps without a first label after which there will be none."""

_LONGEST_GAP = 10_000
"""Steps without a further label after which there will be none."""


class _Row(NamedTuple):
    place: int
    observation: npt.NDArray[Any]
    numbers: Numbers
    episode: int
    game: int


def collect_labelled(
    env: VecEnv,
    n_observations: int,
    *,
    key: str = "labels",
    n_classes: int = 8,
    categories: Mapping[str, tuple[str, ...]] | None = None,
    seed: int = 0,
) -> LabelledObservations:
    """Play random actions, and label what is observed by what the environment's infos say.

    `info[key]` of `reset` and `step` is a dictionary from names of variables to numbers, or arrays
    of numbers, whose entries become variables `name_0`, `name_1` and so on. Integers and booleans
    are classes as they are. Other numbers are cut at their quantiles into `n_classes` classes, as
    equal in size as equal numbers allow, lowest first. An observation whose info lacks the key, as
    one after a `reset` may, is left out.

    Episodes that end early, such as each life in SB3's `make_atari_env`, are kept in groups by the
    whole game, so that probes never train and test on one game. SB3's `Monitor` tells, if it is
    below the wrapper that ends them.

    Args:
        env: Environments of their own, wrapped as the agent's are, without `VecNormalize`: they are
            seeded, reset and played. Images are put channels first, as SB3 shows them to agents.
        n_observations: Number K of labelled observations, >= 1; all are kept in memory, and up to
            `env.num_envs` - 1 more are returned.
        key: Where the labels stand in an info.
        n_classes: Number of classes of a variable that is no integer, 2 to 256.
        categories: Categories by variable, over which scores are averaged; there may be none.
        seed: Seed of environments and actions.

    Returns:
        Observations [K, ...] as the agent receives them, in the order of environments and of time,
        with their labels and episodes.

    Raises:
        TypeError: If a label is no number, or an argument has the wrong type.
        ValueError: If no info has labels, their names change, a label is not finite or no class in
            0..255, observations are no arrays, or an argument is out of range.

    Example:
        >>> import gymnasium
        >>> from stable_baselines3.common.env_util import make_vec_env
        >>> class Labelled(gymnasium.Wrapper):
        ...     def step(self, action):
        ...         *outcome, info = self.env.step(action)
        ...         return *outcome, info | {"labels": {"angle": self.unwrapped.state[2]}}
        >>> env = make_vec_env("CartPole-v1", n_envs=2, wrapper_class=Labelled)
        >>> labelled = collect_labelled(env, 1000)
        >>> labelled.observations.shape, sorted(set(labelled.labels["angle"].tolist()))
        ((1000, 4), [0, 1, 2, 3, 4, 5, 6, 7])
    """
    if not isinstance(env, VecEnv):
        raise TypeError(
            f"Expected `env` to be a VecEnv, got {type(env).__name__}. SB3's make_vec_env makes "
            "one."
        )
    check_count("n_observations", n_observations)
    check_count("seed", seed, at_least=0)
    check_count("n_classes", n_classes, at_least=2, at_most=N_CLASSES)
    env = _as_agents_see(env)
    found = _labelled_rows(env, n_observations, key, seed)
    games = np.array([each.game for each in found], np.int64)
    return LabelledObservations(
        observations=np.stack([each.observation for each in found]),
        labels=_classes([each.numbers for each in found], n_classes),
        episode_ids=np.array([each.episode for each in found], np.int64),
        categories=categories or {},
        provenance={"game": _name(env), "policy": "random", "seed": seed, "n_classes": n_classes},
        group_ids=games if any(env.env_is_wrapped(Monitor)) else None,
    )


def _labelled_rows(env: VecEnv, n_rows: int, key: str, seed: int) -> list[_Row]:
    """Return at least so many rows, those of one environment after those of another."""
    found: list[_Row] = []
    n_unlabelled = 0
    for played in _random_play(env, seed):
        labelled = [
            _Row(place, observation, _numbers(info[key], key), episode, game)
            for place, (observation, info, episode, game) in enumerate(played)
            if key in info
        ]
        found += labelled
        n_unlabelled = 0 if labelled else n_unlabelled + 1
        if len(found) >= n_rows:
            break
        if n_unlabelled > (_LONGEST_GAP if found else _PATIENCE):
            few = (
                f"{len(found)} of {n_rows}, then {n_unlabelled} steps without, and "
                if found
                else ""
            )
            raise ValueError(
                f"Expected infos with labels under {key!r}, got {few}{sorted(played[0][1])}. Put a "
                "dictionary of numbers there, in a wrapper, or name another `key`."
            )
    return sorted(found, key=lambda row: row.place)  # which keeps the order of time


def _as_agents_see(env: VecEnv) -> VecEnv:
    space = env.observation_space
    if unwrap_vec_normalize(env) is not None:
        raise ValueError(
            "Expected `env` without VecNormalize, got one with it. Leave it out: probes normalise "
            "observations by the statistics that the agent has at that time."
        )
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"Expected `env` with observations that are one array (Box), got {space}, which "
            "ProbeCallback does not read. Collect observations and labels yourself, compute "
            "features [K, D] of them with the trained model, and score these by "
            "rl_infonce.probing.probe_features."
        )
    if is_image_space(space) and not is_image_space_channels_first(space):
        return VecTransposeImage(env)
    return env


def _random_play(
    env: VecEnv, seed: int
) -> Iterator[list[tuple[npt.NDArray[Any], Mapping[str, Any], int, int]]]:
    """Yield, for each environment, an observation, its info, episode and game, without end."""
    actions = copy.deepcopy(env.action_space)  # whose stream is not that of the user
    actions.seed(seed)
    env.seed(seed)
    observations = env.reset()
    assert isinstance(observations, np.ndarray)  # noqa: S101 (narrows SB3's union type)
    # Of the innermost environment, as wrappers have an own, empty one.
    infos: Sequence[Mapping[str, Any]] = env.unwrapped.reset_infos
    episodes, games = np.arange(env.num_envs), np.arange(env.num_envs)
    while True:
        yield list(zip(observations.copy(), infos, episodes.tolist(), games.tolist(), strict=True))
        chosen = np.stack([actions.sample() for _ in range(env.num_envs)])
        observations, _, dones, infos = env.step(chosen)
        assert isinstance(observations, np.ndarray)  # noqa: S101
        # Monitor says so when the game is over, and SB3 when a time limit is.
        over = ["episode" in info or info.get("TimeLimit.truncated", False) for info in infos]
        fresh = env.unwrapped.reset_infos
        infos = [fresh[i] if done else infos[i] for i, done in enumerate(dones)]
        episodes += env.num_envs * dones
        games += env.num_envs * (dones & np.array(over))


def _numbers(labels: Any, key: str) -> Numbers:
    """Return one number per variable."""
    if not isinstance(labels, Mapping):
        raise TypeError(
            f"Expected infos[{key!r}] to be a dictionary from names to numbers, got {labels!r}."
        )
    found: Numbers = {}
    for name, value in labels.items():
        where = f"infos[{key!r}][{name!r}]"
        numbers = _finite(where, value)
        own = {f"{name}_{i}": each for i, each in enumerate(numbers.ravel().tolist())}
        if numbers.ndim == 0:
            own = {name: numbers.item()}
        taken = sorted(own.keys() & found.keys())
        if taken:
            raise ValueError(
                f"Expected other names than {taken} in {where}: there are such already."
            )
        found |= own
    return found


def _finite(where: str, value: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"Expected {where} to be a number or an array of them, got {value!r}.")
    if not np.isfinite(array).all():
        raise ValueError(f"Expected {where} to be finite, got {value!r}.")
    return array


def _classes(rows: Sequence[Numbers], n_classes: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return integers [K] by variable."""
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            raise ValueError(
                f"Expected the same labels of every observation, got {sorted(names)} and "
                f"{sorted(row)}. Give each observation all of them, or leave the key out."
            )
    return {name: _classes_of(np.array([row[name] for row in rows]), n_classes) for name in names}


def _classes_of(values: npt.NDArray[Any], n_classes: int) -> npt.NDArray[np.int64]:
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    above = values[values > values.min()]
    if not len(above):
        return np.zeros(len(values), dtype=np.int64)
    # Many that equal the lowest are a class of their own.
    cuts = np.maximum(np.quantile(values, np.arange(1, n_classes) / n_classes), above.min())
    return np.searchsorted(np.unique(cuts), values, side="right")


def _name(env: VecEnv) -> str:
    spec = env.get_attr("spec")[0]
    return "unnamed" if spec is None else str(spec.id)
