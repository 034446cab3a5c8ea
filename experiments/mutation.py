"""Do the tests notice when a line of the losses, of the pairs or of the attachment is changed?

cosmic-ray (`pip install cosmic-ray`) changes one operator, number or constant at a time, and the
module's own tests run on each change in a copy of the last commit. What changes nothing but types
is left out. The command goes on where it was interrupted.

    python experiments/mutation.py --output experiments/results/mutation.json
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from checkouts import checked_out, last_commit, read_results

MODULES = {
    "rl_infonce/nce/losses.py": tuple(
        f"tests/nce/test_{name}.py"
        for name in ("losses", "info_nce_variants", "every_loss", "public_names")
    ),
    "rl_infonce/temporal.py": ("tests/test_temporal.py",),
    "rl_infonce/copies.py": ("tests/test_copies.py",),
    "rl_infonce/sb3/attach.py": ("tests/sb3/test_gradients.py", "tests/sb3/test_callbacks.py"),
}
_BINARY = {
    **{"Add": ("Sub", "Mul"), "Sub": ("Add", "Mul"), "Mul": ("Div", "Add")},
    **{"Div": ("Mul", "FloorDiv"), "FloorDiv": ("Mod", "Mul"), "Mod": ("FloorDiv", "Add")},
    **{"BitAnd": ("BitOr", "BitXor"), "BitOr": ("BitAnd",)},
}
_COMPARISONS = {
    **{"Eq": ("NotEq", "LtE", "GtE"), "NotEq": ("Eq",), "Is": ("IsNot",), "IsNot": ("Is",)},
    **{"Gt": ("GtE", "Lt"), "GtE": ("Gt", "Lt"), "Lt": ("LtE", "Gt"), "LtE": ("Lt", "Gt")},
}
OPERATORS = (
    *(f"ReplaceBinaryOperator_{one}_{other}" for one in _BINARY for other in _BINARY[one]),
    *(f"ReplaceComparisonOperator_{one}_{o}" for one in _COMPARISONS for o in _COMPARISONS[one]),
    *("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Invert"),
    *("NumberReplacer", "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ZeroIterationForLoop", "RemoveDecorator"),
)
_SECONDS = 300


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield each change of a module, as a name and the whole text, without those of types alone."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    seen = {_meaning(source)}
    for name in OPERATORS:
        operator, n_before = get_operator(f"core/{name}")(), 0
        while (changed := mutate_code(source, operator, n_before)) is not None:
            n_before += 1
            try:
                meaning = _meaning(changed)
            except SyntaxError:  # a star in a signature is no product
                continue
            if meaning not in seen:
                seen.add(meaning)
                yield _difference(source, changed), changed


def _meaning(source: str) -> str:
    """Return a text that two modules share if they differ in annotations and layout alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def _difference(source: str, changed: str) -> str:
    """Return the number of the first line that differs, with both texts."""
    before, after = source.splitlines(), changed.splitlines()
    place = next(i for i, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) == 2)
    return f"{place + 1}: {before[place].strip()} -> {after[place].strip()}"


def is_noticed(checkout: Path, tests: tuple[str, ...]) -> bool:
    """Return whether a test fails, or takes minutes, in a checkout."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=checkout,
            env=environment,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def mutate(module: str, checkout: Path, found: dict[str, bool], save: Callable[[], None]) -> None:
    """Note whether the tests notice each change of a module that is not noted yet."""
    path = checkout / module
    source = path.read_text()
    if is_noticed(checkout, MODULES[module]):
        raise RuntimeError(f"Expected {MODULES[module]} to pass before {module} is changed.")
    for name, changed in mutants(source):
        if name not in found:
            path.write_text(changed)
            found[name] = is_noticed(checkout, MODULES[module])
            save()
    path.write_text(source)


def table(modules: dict[str, dict[str, bool]]) -> str:
    """Return how many changes of each module its tests noticed, as Markdown."""
    lines = ["| module | changes | noticed | share |", "|---|---|---|---|"]
    for module, found in modules.items():
        n_noticed = sum(found.values())
        share = f"{n_noticed / len(found):.0%}"
        lines.append(f"| `{module}` | {len(found)} | {n_noticed} | {share} |")
    return "\n".join(lines)


def main() -> None:
    """Change each module in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    commit = last_commit()
    content = {"modules": {}, **read_results(arguments.output, commit)}
    with tempfile.TemporaryDirectory() as folder:
        checkout = checked_out(commit, Path(folder) / "checkout")
        content["cosmic-ray"] = version("cosmic-ray")

        def save() -> None:
            arguments.output.write_text(json.dumps(content, indent=1) + "\n")

        for module in MODULES:
            mutate(module, checkout, content["modules"].setdefault(module, {}), save)
    print(table(content["modules"]))


if __name__ == "__main__":
    main()
