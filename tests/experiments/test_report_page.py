"""The pictures of a report: small enough to keep, and as wide as their screens."""

import pytest
import report_page
from PIL import Image
from probe_tensorboard import MAX_BYTES

from tests.experiments.loading import RESULTS, study_page


@pytest.mark.parametrize("name", report_page.SCREENS)
def test_a_picture_is_small_and_as_wide_as_its_screen(name: str) -> None:
    path = RESULTS / "report_page" / f"{name}.png"
    with Image.open(path) as picture:
        assert picture.size == report_page.SCREENS[name][:2]
    assert path.stat().st_size <= MAX_BYTES
    assert f"]({name}.png)" in study_page("report_page/README.md")
