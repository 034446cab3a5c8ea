"""What the hyperparameters of SB3's algorithms must be: SB3 itself fails late or names none."""

from __future__ import annotations

from typing import Any

from rl_infonce.kinds import ByFit, Count, Flag, Kind, Number

_UNITS = ("step", "episode")


class _Found(ByFit):
    """A number, or "auto" where the algorithm finds it, from the 0.1 of "auto_0.1" on."""

    words = 'a finite number, "auto" or such as "auto_0.1"'

    def fits(self, value: Any) -> bool:
        if not isinstance(value, str):
            return Number().fits(value)
        start = value.removeprefix("auto_")
        try:
            return value == "auto" or (start != value and Number(above=0).fits(float(start)))
        except ValueError:
            return False


class _Target(ByFit):
    """A number, or "auto" where the algorithm takes it from the space of actions."""

    words = 'a finite number or "auto"'

    def fits(self, value: Any) -> bool:
        return value == "auto" if isinstance(value, str) else Number().fits(value)


class _Frequency(ByFit):
    """A count of steps, or of steps or episodes by name."""

    words = 'an int >= 1, or one with its unit such as (1, "episode")'

    def fits(self, value: Any) -> bool:
        if not isinstance(value, tuple):
            return Count().fits(value)
        return len(value) == 2 and Count().fits(value[0]) and value[1] in _UNITS


_SHARE, _ANY, _NOT_BELOW_0 = Number(at_least=0, at_most=1), Number(), Number(at_least=0)
_SIZES = ("batch_size", "buffer_size", "n_epochs", "n_steps", "policy_delay", "stats_window_size")
_TRPO_SIZES = ("cg_max_steps", "line_search_max_iter", "n_critic_updates", "sub_sampling_factor")
_SHARES = ("gamma", "gae_lambda", "tau", "line_search_shrinking_factor")
_EXPLORATION = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
_SCALES = ("learning_rate", "clip_range", "clip_range_vf", "max_grad_norm", "target_kl")
_NOISES = ("rms_prop_eps", "cg_damping", "target_policy_noise", "target_noise_clip")
_FLAGS = ("normalize_advantage", "optimize_memory_usage", "use_rms_prop", "use_sde")
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((*_SIZES, *_TRPO_SIZES, "target_update_interval"), Count()),
    **dict.fromkeys(("learning_starts", "top_quantiles_to_drop_per_net"), Count(0)),
    **dict.fromkeys(("gradient_steps", "sde_sample_freq"), Count(-1)),
    **dict.fromkeys((*_SHARES, *_EXPLORATION), _SHARE),
    **dict.fromkeys((*_SCALES, *_NOISES), _NOT_BELOW_0),
    **dict.fromkeys(("ent_coef", "vf_coef"), _ANY),
    **dict.fromkeys((*_FLAGS, "use_sde_at_warmup"), Flag()),
    "target_entropy": _Target(),
    "train_freq": _Frequency(),
}


def takes_ints(name: str, default: Any) -> bool:
    """Return whether a hyperparameter takes ints alone; an unknown one is judged by its default."""
    kind = _KINDS.get(name)
    return type(default) is int if kind is None else isinstance(kind, Count | _Frequency)


def checked_value(name: str, value: Any, default: Any) -> Any:
    """Return the value of a hyperparameter, with SB3's default, as SB3 takes it.

    Whole numbers may be written as floats, such as 1e5; names that this package does not know are
    left to SB3.

    Raises:
        TypeError: If the value is of another kind.
        ValueError: If it is out of its range.
    """
    is_found = name == "ent_coef" and default == "auto"
    kind = _Found() if is_found else _KINDS.get(name)
    if kind is None or (value is None and default is None):
        return value
    if isinstance(value, list) and name == "train_freq":  # a file has no tuples
        value = tuple(value)
    if isinstance(kind, Count | _Frequency) and isinstance(value, float) and value.is_integer():
        value = int(value)
    kind.check(name, value)
    return value
