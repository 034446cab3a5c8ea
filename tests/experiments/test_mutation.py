"""Changes of a line that tests should notice."""

from pathlib import Path

import pytest

from tests.experiments.loading import load

SOURCE = """
def double(x: int | None, *, y: int = 0) -> int | None:
    return x + x
"""


def test_each_change_of_meaning_is_made_once_and_none_of_types() -> None:
    pytest.importorskip("cosmic_ray", exc_type=ImportError)
    names = [name for name, _ in load("mutation.py").mutants(SOURCE)]
    texts = {name.split(" -> ")[-1] for name in names if name.startswith("3")}
    assert texts == {"return x - x", "return x * x"}
    assert len(names) == len(set(names)) == 5  # the star becomes a slash, and 0 becomes 1 or -1
    assert not any("int & None" in name for name in names)


def test_what_is_noted_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = load("mutation.py")
    monkeypatch.setattr(mutation, "MODULES", {"module.py": ("tests",)})
    made = {"1: a -> b": "b", "1: a -> c": "c"}
    monkeypatch.setattr(mutation, "mutants", lambda source: made.items())
    ran: list[str] = []

    def is_noticed(checkout: Path, tests: tuple[str, ...]) -> bool:
        ran.append((checkout / "module.py").read_text())
        return ran[-1] == "c"

    monkeypatch.setattr(mutation, "is_noticed", is_noticed)
    (tmp_path / "module.py").write_text("a")
    found = {"1: a -> b": True}
    saved: list[int] = []
    mutation.mutate("module.py", tmp_path, found, lambda: saved.append(len(found)))
    assert ran == ["a", "c"]  # the module as it is comes first
    assert found == {"1: a -> b": True, "1: a -> c": True}
    assert saved == [2]
    assert (tmp_path / "module.py").read_text() == "a"
    assert "| `module.py` | 2 | 2 | 100% |" in mutation.table({"module.py": found})
