from typing import Any

import pytest

from rl_infonce import InfoNCEExtractor


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by one entry per auxiliary loss."""
    found: list[str] = []
    original = InfoNCEExtractor.infonce_loss

    def counting(self: InfoNCEExtractor, experience: Any) -> Any:
        found.append("loss")
        return original(self, experience)

    monkeypatch.setattr(InfoNCEExtractor, "infonce_loss", counting)
    return found
