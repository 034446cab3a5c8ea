"""Videos show the images that went in."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from rl_infonce.report.video import check_video_path, write_video


def images(n: int = 5) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield images of 3 colours, with a bar that moves."""
    for i in range(n):
        image = np.zeros((210, 160, 3), np.uint8)
        image[:, :] = (10, 200, 30)
        image[20 * i : 20 * i + 20] = (250, 3, 77)
        image[:, 5] = (0, 0, 255)
        yield image


def test_a_gif_has_the_exact_images_and_rate(tmp_path: Path) -> None:
    assert write_video(tmp_path / "a.gif", images(), frames_per_second=15) == 5
    with Image.open(tmp_path / "a.gif") as video:
        assert video.n_frames == 5
        assert video.info["loop"] == 0
        for i, image in enumerate(images()):
            video.seek(i)
            assert video.info["duration"] == 70
            np.testing.assert_array_equal(np.asarray(video.convert("RGB")), image)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_only_so_many_are_taken(tmp_path: Path) -> None:
    source = images()
    assert write_video(tmp_path / "a.gif", source, frames_per_second=15, most=2) == 2
    assert len(list(source)) == 3


@pytest.mark.filterwarnings("ignore:unclosed file")  # of imageio_ffmpeg's pipes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_mp4_has_all_images_in_twice_the_size(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert write_video(tmp_path / "a.mp4", images(), frames_per_second=15) == 5
    frames = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    about = next(frames)
    assert (about["size"], about["fps"]) == ((320, 420), 15)
    shown = [np.frombuffer(frame, np.uint8).reshape(420, 320, 3) for frame in frames]
    assert len(shown) == 5
    for frame, image in zip(shown, images(), strict=True):
        error = np.abs(frame[::2, ::2].astype(int) - image)
        assert np.median(error) < 12  # the codec loses some colour


@pytest.mark.parametrize("name", ["a.avi", "a"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"\.gif or \.mp4"):
        check_video_path(tmp_path / name)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder"):
        check_video_path(tmp_path / "none" / "a.gif")


def test_without_ffmpeg_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "rl-infonce\[video\]"`, or write a .gif'):
        check_video_path(tmp_path / "a.mp4")
    check_video_path(tmp_path / "a.gif")


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    def failing() -> Iterator[npt.NDArray[np.uint8]]:
        yield from images(2)
        raise RuntimeError("the game crashed")

    (tmp_path / "a.gif").write_text("before")
    with pytest.raises(RuntimeError, match="crashed"):
        write_video(tmp_path / "a.gif", failing(), frames_per_second=15)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
