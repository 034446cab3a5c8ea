#!/usr/bin/env bash
# Set up an environment of its own in .venv-test and run every check. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
# Tests start processes, which would compile what they import each for itself.
unset PYTHONDONTWRITEBYTECODE
[ -x .venv-test/bin/python ] || python3 -m venv .venv-test
. .venv-test/bin/activate
installed=.venv-test/installed
if ! [ "$installed" -nt pyproject.toml ] || ! [ "$installed" -nt constraints.txt ]; then
    echo "Installing into .venv-test; the first time this downloads torch."
    python -m pip install --quiet --upgrade "pip>=25.1"
    python -m pip install --quiet --no-compile -c constraints.txt --group test --editable ".[contrib,plots]"
    touch "$installed"
    # Beside mypy, which needs one core: pip compiled nothing, and each worker would for itself.
    pytest --collect-only >/dev/null 2>&1 &
fi
ruff format --check .
ruff check .
mypy
lint-imports
wait
# Checkpoints wait for the disk, thousands of times here; memory has room in seconds for nearly all.
free_kib=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 || true)
[ "${free_kib:-0}" -lt 6000000 ] || export PYTEST_DEBUG_TEMPROOT="${PYTEST_DEBUG_TEMPROOT:-/dev/shm}"
# Three workers on two cores, as some of the tests wait for processes of their own.
pytest --numprocesses 3 --dist worksteal --durations 25 "$@"
