"""What a command says when it is used wrongly."""

from __future__ import annotations

import pytest

from rl_infonce.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints as an error before it exits with 2."""
    with pytest.raises(SystemExit) as leaving:
        main([*words])
    assert leaving.value.code == 2
    return capsys.readouterr().err
