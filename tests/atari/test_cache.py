import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_infonce.atari.cache import cached_frames
from rl_infonce.atari.collection import Collection

pytestmark = pytest.mark.atari


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"game": "pnog"}, ValueError, "Did you mean 'pong'"),
        ({"n_frames": 5}, ValueError, "Expected `n_frames` to be a finite number >= 8, got 5"),
        ({"n_frames": 8.0}, TypeError, "Expected `n_frames` to be an integer"),
        ({"seed": -1}, ValueError, "Expected `seed`"),
        (
            {"view": "rgb"},
            ValueError,
            "Expected `view` to be one of ['agent', 'screen'], got 'rgb'",
        ),
        ({"policy": "greedy"}, ValueError, "Expected `policy` to be one of"),
        ({"policy": len, "view": "agent"}, ValueError, "Expected `policy` to be one of"),
        ({"progress": "no"}, TypeError, "Expected `progress`"),
    ],
)
def test_wrong_arguments_are_named_as_the_caller_wrote_them(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"game": "pong", "n_frames": 8, "seed": 0, **arguments}
    with pytest.raises(error, match=re.escape(message)):
        cached_frames(**given, cache_folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_frames_are_collected_once_and_found_again_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    given: dict[str, Any] = {"seed": 0, "cache_folder": "~/frames"}
    first = cached_frames("pong", 8, **given)
    (manifest,) = tmp_path.glob("frames/frames/pong-*/manifest.json")
    written = manifest.stat().st_mtime_ns
    np.testing.assert_array_equal(cached_frames("Pong", 8, **given).ram, first.ram)
    assert manifest.stat().st_mtime_ns == written


def test_a_cache_that_takes_nothing_has_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rl_infonce").write_text("of somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OSError, match=r"rl_infonce/frames/pong-.*Let XDG_CACHE_HOME .* --frames"):
        cached_frames("pong", 8, seed=0)
    monkeypatch.setattr(Collection, "_n_bytes_missing", lambda _self: 10**18)
    with pytest.raises(OSError, match=r"the disk is full.*Let XDG_CACHE_HOME"):
        cached_frames("pong", 8, seed=0, cache_folder=tmp_path / "other")
