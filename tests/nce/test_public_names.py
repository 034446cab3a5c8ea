import inspect
from types import ModuleType

from rl_infonce import nce


def test_nce_all_lists_exactly_its_public_names() -> None:
    public = {
        name
        for name, member in vars(nce).items()
        if not name.startswith("_") and not isinstance(member, ModuleType)
    }
    # a module and a function may share a name: then the function must have won
    assert public == set(nce.__all__)
    assert all(inspect.isroutine(m) or inspect.isclass(m) for m in map(vars(nce).get, nce.__all__))
