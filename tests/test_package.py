"""The package as users and tools see it from outside."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import rl_infonce
import rl_infonce.atari
from tests.test_readme import blocks, small

ROOT = Path(__file__).parents[1]


def imported_by(statement: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    finished = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return set(finished.stdout.split())


def test_importing_the_package_is_light() -> None:
    heavy = {"stable_baselines3", "ale_py", "matplotlib", "torch", "gymnasium"}
    assert not imported_by("import rl_infonce") & heavy
    assert "torch" not in imported_by("import rl_infonce.atari as atari; atari.games()")


def test_the_newest_release_is_the_same_everywhere() -> None:
    """A version under development has no date yet, and the citation names the release before it."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", changelog, re.M)
    headings = re.findall(r"^## .*$", changelog, re.M)
    assert len(headings) == len(releases) + ("## [Unreleased]" in headings)
    assert releases == sorted(releases, key=lambda release: Version(release[0]), reverse=True)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.findall(r"^(?:version|date-released): (.*)$", citation, re.M)
    assert cited == list(releases[0])
    if ".dev" not in rl_infonce.__version__:
        assert rl_infonce.__version__ == releases[0][0]


@pytest.mark.slow
def test_the_plugin_works_without_sb3_contrib_and_ale_py() -> None:
    found = imported_by("from rl_infonce import InfoNCEExtractor, InfoNCECallback, ProbeCallback")
    assert "stable_baselines3" in found
    assert not found & {"sb3_contrib", "ale_py"}


def test_public_names_can_be_imported_and_are_listed() -> None:
    for name in rl_infonce.__all__:
        assert getattr(rl_infonce, name) is not None
    assert dir(rl_infonce) == sorted(rl_infonce.__all__)
    assert "make_atari_vec_env" in dir(rl_infonce.atari)


def test_docstrings_may_come_without_indentation() -> None:
    """As Python 3.13 has them."""
    path = ROOT / "rl_infonce/sb3/extractor.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (docstring := ast.get_docstring(node)):
            node.body[0] = ast.Expr(ast.Constant(docstring))
    module = ModuleType("extractor")
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), vars(module))
    assert module.InfoNCEExtractor.__doc__ == rl_infonce.InfoNCEExtractor.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="InfoNCEExtractr"):
        _ = rl_infonce.InfoNCEExtractr


def test_metadata_names_version_licence_and_extras() -> None:
    assert version("rl-infonce") == rl_infonce.__version__
    described = metadata("rl-infonce")
    assert described["License-Expression"] == "MIT"
    assert set(described.get_all("Provides-Extra") or []) == {
        "completion",
        "contrib",
        "dmc",
        "hub",
        "minigrid",
        "mujoco",
        "optuna",
        "plots",
        "ray",
        "report",
        "slurm",
        "video",
        "vizdoom",
        "zoo",
    }


def wheel_in(folder: Path) -> Path:
    """Build the wheel."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.atari
@pytest.mark.slow
def test_the_blocks_of_the_first_page_run_from_the_wheel_alone(tmp_path: Path) -> None:
    site, new = tmp_path / "site", tmp_path / "new"
    new.mkdir()
    with zipfile.ZipFile(wheel_in(tmp_path)) as archive:
        archive.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "MPLBACKEND": "agg"}
    for at, block in enumerate(blocks("python", "README.md")):
        script = new / f"block_{at}.py"
        where = "import rl_infonce\nprint(rl_infonce.__file__)\n"
        script.write_text(f"{small(block, 128)}\n{where}")
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=new, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(site / "rl_infonce" / "__init__.py")


def test_the_wheel_holds_the_package_its_types_and_its_command(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_in(tmp_path)) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "rl-infonce = rl_infonce.cli:main" in archive.read(entry_points).decode()
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rl_infonce").rglob("*.py")}
    data = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rl_infonce").rglob("*.json")}
    assert "rl_infonce/atari/ram_labels.json" in data
    assert names >= modules | data | {"rl_infonce/py.typed"}
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rl_infonce"}


def test_what_is_packed_as_source_holds_what_is_built_and_no_more(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rl_infonce").rglob("*.py")}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt"}
    assert names >= modules | needed | {"rl_infonce/py.typed", "rl_infonce/atari/ram_labels.json"}
    assert not [name for name in names if name.startswith(("experiments/", "tests/"))]


def pinned() -> dict[str, str]:
    """Return requirement by normalised name of constraints.txt, for this Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in parsed}


def test_the_tested_torch_is_pinned() -> None:
    assert pinned()["torch"] == "2.13.0"


@pytest.mark.skipif(find_spec("rl_zoo3") is None, reason="rl_zoo3 is not installed")
def test_everything_the_package_and_its_tests_import_is_pinned() -> None:
    left = ["rl-infonce", *_test_group()]
    needed: set[str] = set()
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if name in needed:
            continue
        needed.add(name)
        extras = requirement.extras or {""}
        if name == "rl-infonce":
            extras = {"", "contrib", "plots"}
        for inner in map(Requirement, requires(name) or []):
            if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in extras):
                left.append(str(inner))
    needed = {name for name in needed if not name.startswith(("nvidia-", "cuda-"))}
    assert needed - {"rl-infonce", "triton"} <= set(pinned())


def _test_group() -> list[str]:
    """Return the lines of pyproject's group "test" (tomllib is not in Python 3.10)."""
    text = (ROOT / "pyproject.toml").read_text()
    (group,) = re.findall(r"^test = \[\n(.*?)^\]", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r'"(.+?)"', group)
