"""No line of the package runs code out of a file, but for those named here."""

from pathlib import Path

import pytest

import rl_infonce
from tests.attacks.forbidden import forbidden_references

PACKAGE = Path(rl_infonce.__file__).parent

ALLOWED = {
    # public names are imported when they are used; the modules are a literal in this file
    ("__init__.py", "importlib.import_module"),
    # required packages are tried; their names are a literal in this file
    ("cli/doctor.py", "importlib.import_module"),
    # packages of algorithms and environments; their names are literals in these files
    ("training/algorithms.py", "importlib.import_module"),
    ("environments/families.py", "importlib.import_module"),
    # packages of extras; their names are literals where they are asked for
    ("checks.py", "importlib.import_module"),
    # the module of "module:Id": a record may name it, but it is one that the user installed
    ("environments/ids.py", "importlib.import_module"),
    # --trust-pickle: the user said that the file's code may run
    ("agents/trusted_model.py", "stable_baselines3.common.save_util.load_from_zip_file"),
}


def test_the_package_runs_no_code_of_files() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 50
    found = {
        (path.relative_to(PACKAGE).as_posix(), each.name): each.line
        for path in paths
        for each in forbidden_references(path.read_text(encoding="utf-8"))
    }
    unexpected = [f"{file}:{line} {name}" for (file, name), line in found.items()]
    assert found.keys() == ALLOWED, unexpected


CAUGHT = [
    "import pickle; pickle.loads(b'')",
    "import pickle as p; p.load(file)",
    "import pickle; p = pickle.Unpickler",
    "import pickle\nclass U(pickle.Unpickler): pass",
    "from pickle import loads",
    "from pickle import loads as read; read(b'')",
    "from pickle import *",
    "import pickle; getattr(pickle, 'loads')(b'')",
    "def f():\n    import pickle\n    return pickle.loads(b'')",
    "import cloudpickle; cloudpickle.loads(b'')",
    "import dill; dill.load(file)",
    "import joblib; joblib.load('x')",
    "import shelve; shelve.open('x')",
    "import marshal; marshal.loads(b'')",
    "import pandas as pd; pd.read_pickle('x')",
    "eval('1')",
    "exec('1')",
    "map(eval, ['1'])",
    "compile('1', '', 'eval')",
    "import builtins; builtins.eval('1')",
    "__import__('os')",
    "import importlib; importlib.import_module(name)",
    "import os; os.system('ls')",
    "from os import system",
    "import os; os.popen('ls')",
    "import subprocess; subprocess.run('ls', shell=True)",
    "import subprocess; subprocess.run('ls', shell=shell)",
    "import subprocess; subprocess.run('ls', **settings)",
    "from subprocess import check_output as run; run('ls', shell=True)",
    "import subprocess; subprocess.getoutput('ls')",
    "import torch; torch.load('x')",
    "import torch; torch.load('x', weights_only=False)",
    "import torch; torch.load('x', weights_only=flag)",
    "import torch; torch.load('x', **settings)",
    "import torch as t; t.load('x', 'cpu')",
    "from torch import load; load('x')",
    "import torch; read = torch.load",
    "import torch; torch.jit.load('x')",
    "import torch.hub; torch.hub.load('x', 'y')",
    "import numpy as np; np.load('x')",
    "import numpy as np; np.load('x', allow_pickle=True)",
    "import yaml; yaml.load(text)",
    "import yaml; yaml.load(text, Loader=yaml.FullLoader)",
    "import yaml; yaml.unsafe_load(text)",
    "from stable_baselines3 import PPO; PPO.load('x')",
    "import stable_baselines3 as sb3; sb3.PPO.load('x')",
    "from stable_baselines3.common.save_util import load_from_zip_file",
]


@pytest.mark.parametrize("source", CAUGHT)
def test_what_runs_code_is_caught(source: str) -> None:
    assert forbidden_references(source)


HARMLESS = [
    "import torch; torch.jit.is_tracing()",
    "import pickle\ntry: pass\nexcept pickle.UnpicklingError: pass",
    "import re; re.compile('1')",
    "import torch; torch.compile(model)",
    "import ast; ast.parse('1', mode='eval')",
    "encoder.eval()",
    "def load(step): return step\nload(1)",
    "from safetensors.torch import load; load(b'')",
    "import subprocess; subprocess.run(['ls'])",
    "import subprocess; subprocess.run(['ls'], shell=False)",
    "import torch; torch.load('x', weights_only=True)",
    "from torch import load; load('x', weights_only=True)",
    "import numpy as np; np.load('x', allow_pickle=False)",
    "from numpy import load; load('x', mmap_mode='r', allow_pickle=False)",
    "import yaml; yaml.safe_load(text)",
    "import yaml; yaml.load(text, Loader=yaml.SafeLoader)",
    "getattr(model, 'load')",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_what_runs_nothing_is_let_through(source: str) -> None:
    assert forbidden_references(source) == []
