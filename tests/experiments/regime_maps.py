"""What tests of the map of regimes share."""

import re
from pathlib import Path

from regime_scores import Row

from rl_infonce.report.statistics import Interval


def words_of(picture: Path) -> set[str]:
    """Return the texts of a picture, without the numbers of its axes."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    return {text for text in texts if not re.fullmatch(r"\W?[0-9.]+", text)}


def words_of_picture(rows: list[Row]) -> set[str]:
    """Return the texts that the picture of a map has to have."""
    arms = {arm for row in rows for arm, each in row.differences.items() if each is not None}
    axis = "score above the same network without the loss, 95 % intervals"
    return {axis, *(row.grid.regime for row in rows), *(arm.replace("_", " ") for arm in arms)}


def present(interval: Interval | None) -> Interval:
    """Return an interval that is not missing."""
    assert interval is not None
    return interval
