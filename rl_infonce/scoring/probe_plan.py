"""Plan what `rl-infonce probe` scores: which games, which features, on which images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rl_infonce.checks import check_number
from rl_infonce.device import usable_device
from rl_infonce.scoring.feature_sources import (
    MAJORITY,
    RANDOM,
    ProbedEncoder,
    majority,
    open_encoder,
    paper_encoder,
)
from rl_infonce.scoring.frame_source import find_frames
from rl_infonce.scoring.probe_runner import Plan

VIEWS: dict[str, tuple[int, ...]] = {"screen": (1, 210, 160), "agent": (4, 84, 84)}


def make_plan(
    games: Sequence[str],
    features_of: Sequence[str],
    *,
    seeds: Sequence[int],
    protocols: Sequence[str],
    labels: str,
    frames: Path | None = None,
    view: str | None = None,
    n_frames: int | None = None,
    policy: str | None = None,
    data_seed: int | None = None,
    min_episode_length: int | None = None,
    precision: str = "fp32",
    device: str = "auto",
    trust_pickle: bool = False,
    progress: bool = False,
    say: Callable[[str], object],
    complain: Callable[[str], object],
) -> Plan:
    """Return the plan of all that is asked for, and of what stands beside it.

    Untrained weights of each architecture and the majority class are always scored also. The
    features are those of "random", of "majority" or of what `open_encoder` opens. Without a view,
    the images are those that the first encoder reads. `find_frames` says what frames, their number,
    the policy and the seed of None stand for.
    """
    if min(seeds, default=0) < 0:
        raise ValueError(f"Expected `--seeds` to be at least 0, got {min(seeds)}.")
    files = [name for name in dict.fromkeys(features_of) if name not in (RANDOM, MAJORITY)]
    pairs = [open_encoder(name, trust_pickle=trust_pickle) for name in files]
    asked, beside = [trained for trained, _ in pairs], [untrained for _, untrained in pairs]
    view = _view(view, asked)
    beside += [paper_encoder(view)] if RANDOM in features_of else []
    if min_episode_length is not None:
        check_number("--min-episode-length", min_episode_length, at_least=1)
    source = find_frames(games, frames, view, n_frames=n_frames, policy=policy, seed=data_seed)
    return Plan(
        games=games,
        source=source,
        encoders=_by_key((*asked, *beside, majority()), complain),
        seeds=list(dict.fromkeys(seeds)),
        protocols=protocols,
        labels=labels,
        min_episode_length=min_episode_length,
        precision=precision,
        device=usable_device(device),
        progress=progress,
        say=say,
        complain=complain,
    )


def _by_key(
    encoders: Sequence[ProbedEncoder], complain: Callable[[str], object]
) -> dict[str, ProbedEncoder]:
    """Return the encoders by content, and complain of equal ones under several names."""
    found: dict[str, ProbedEncoder] = {}
    for encoder in encoders:
        first = found.setdefault(encoder.key, encoder)
        if first.name != encoder.name:
            complain(f"{encoder.name} holds the encoder of {first.name}, which is scored once.")
    return found


def _view(view: str | None, encoders: Sequence[ProbedEncoder]) -> str:
    """Return the images to collect, which every encoder must be able to read."""
    shapes: dict[tuple[int, ...] | None, str] = {shape: name for name, shape in VIEWS.items()}
    if view is None:
        read = (shapes.get(encoder.image_shape) for encoder in encoders)
        view = next((name for name in read if name is not None), "agent" if encoders else "screen")
    for encoder in encoders:
        if encoder.image_shape != VIEWS[view]:
            fitting = shapes.get(encoder.image_shape)
            way_out = (
                f"Use --view {fitting}, and another --output for each view."
                if fitting
                else "Train on rl_infonce.make_atari_vec_env, or probe it in Python."
            )
            raise ValueError(
                f"Expected {encoder.name} to read images of shape {VIEWS[view]}, those of --view "
                f"{view}, got an encoder of observations of shape {encoder.image_shape}. {way_out}"
            )
    return view
