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


def test_only_tensors_may_be_given_without_their_names() -> None:
    functions = [vars(nce)[name] for name in nce.__all__ if inspect.isfunction(vars(nce)[name])]
    for function in functions:
        options = list(inspect.signature(function).parameters.values())
        named = [each for each in options if each.name in ("mask", "validate_args")]
        assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in named), function
        assert options[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, function
