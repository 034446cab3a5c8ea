"""A grid says which trainings there are, or everything that is wrong with it."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_infonce.sweeps.arms import ARMS, control_problems, hyperparameters_for, merged
from rl_infonce.sweeps.grid import GridError, make_grid, parse_grid, read_grid
from rl_infonce.training.rl_zoo import ALGORITHMS
from tests.sweeps.grids import GRID, write_grid


def test_cells_are_games_by_algorithms_by_arms_by_seeds(tmp_path: Path) -> None:
    changes = {"games": ["Pong", "ALE/MsPacman-v5"], "algos": ["ppo", "dqn"], "seeds": [3, 1]}
    grid = read_grid(write_grid(tmp_path / "grid.toml", train={}, **changes))
    assert grid.games == ("pong", "ms_pacman")
    names = [cell.name for cell in grid.cells()]
    assert len(names) == len(set(names)) == 2 * 2 * 2 * 2
    assert names[:3] == ["pong-ppo-baseline-3", "pong-ppo-infonce-3", "pong-dqn-baseline-3"]
    assert names[8] == "pong-ppo-baseline-1", "all of one seed before the next"


def test_what_is_not_said_is_ppo_with_and_without_the_loss_on_three_seeds() -> None:
    grid = make_grid({"games": ["pong"], "n_timesteps": 10})
    assert (grid.algos, grid.arms, grid.seeds) == (("ppo",), ("baseline", "infonce"), (0, 1, 2))
    assert grid.probe is None


def test_every_built_in_arm_is_legal_for_ppo_and_dqn() -> None:
    content = {"games": ["pong"], "n_timesteps": 10, "algos": ["ppo", "dqn"], "arms": list(ARMS)}
    cells = {cell.name: dict(cell.settings) for cell in make_grid(content).cells()}
    assert cells["pong-ppo-infonce-0"] == {}
    assert cells["pong-ppo-extra_updates-0"]["hyperparameters"] == {"n_epochs": 5}
    assert cells["pong-dqn-extra_updates-0"]["hyperparameters"] == {"gradient_steps": 2}
    off = {name for name, settings in cells.items() if settings.get("infonce_coef") == 0}
    assert {name.split("-")[2] for name in off} == {
        *("baseline", "augment_only", "extra_updates", "frozen_random"),
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_built_in_arm_but_extra_updates_is_legal_on_environments(algo: str) -> None:
    content = {"envs": ["Ant-v5"], "n_timesteps": 10, "algos": [algo], "arms": list(ARMS)}
    with pytest.raises(GridError, match="'extra_updates' with ppo and dqn on Atari") as refusal:
        make_grid(content)
    assert len(str(refusal.value).splitlines()) == 1
    content["arms"] = [arm for arm in ARMS if arm != "extra_updates"]
    assert make_grid(content).cells()[0].game == "Ant-v5"


def test_environments_stand_beside_games() -> None:
    content = {"games": ["pong"], "envs": ["Ant-v5", "mine:ns/Maze-v0"], "n_timesteps": 9}
    grid = make_grid({**content, "seeds": [0], "arms": ["baseline"]})
    assert grid.tasks == ("pong", "Ant-v5", "mine:ns/Maze-v0")
    assert [cell.name for cell in grid.cells()] == [
        *("pong-ppo-baseline-0", "Ant-v5-ppo-baseline-0", "ns-Maze-v0-ppo-baseline-0"),
    ]
    assert [cell.is_atari for cell in grid.cells()] == [True, False, False]
    with pytest.raises(GridError, match="to import mine, which"):
        make_grid(content, check_files=True)
    content["envs"] = ["Ant-v5", "HalfCheeta-v5"]
    with pytest.raises(GridError, match="Did you mean 'HalfCheetah-v5'"):
        make_grid(content, check_files=True)


def test_arms_do_what_they_are_named_for() -> None:
    off = {"infonce_coef": 0.0}
    assert {
        "baseline": off,
        "infonce": {},
        "placebo": {"positives": "shuffled"},
        "augment_only": {**off, "augment_observations": True},
        "extra_updates": {
            **off,
            "hyperparameters": {"ppo": {"n_epochs": 5}, "dqn": {"gradient_steps": 2}},
        },
        "decoupled": {"decoupled": True},
        "frozen_random": {**off, "freeze_encoder": True},
        **{name: {"preset": name} for name in ("spatial_cpc", "positional_cpc", "atc", "curl")},
    } == ARMS


def test_an_arm_stands_before_what_is_common_to_all() -> None:
    train = {"n_envs": 4, "infonce_coef": 0.5, "hyperparameters": {"n_epochs": 2, "gamma": 0.9}}
    arm = {"infonce_coef": 0.3, "hyperparameters": {"ppo": {"n_epochs": 7}, "dqn": {"tau": 0.5}}}
    assert merged(train, arm, "ppo") == {
        "n_envs": 4,
        "infonce_coef": 0.3,
        "hyperparameters": {"n_epochs": 7, "gamma": 0.9},
    }
    assert hyperparameters_for(arm, "dqn") == {"tau": 0.5}
    assert merged({}, {}, "ppo") == {}
    both = {**GRID, "algos": ["ppo", "dqn"]}
    own = make_grid({**both, "arms": ["mine"], "arm": {"mine": arm}, "train": {}})
    assert own.cells()[0].settings["infonce_coef"] == 0.3


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    path = write_grid(
        tmp_path / "grid.toml",
        games=["pong", "breakuot", 3],
        algos=["ppo", "ars"],
        arms=["baseline", "infonec"],
        seeds=[0, 0, -1],
        n_timesteps=0,
        n_seeds=3,
        train={
            **{
                "n_env": 2,
                "n_epochs": 3,
                "n_pairs": 0,
                "infonce_coef": True,
                "on_nan": "halt",
                "preset": "cpd",
            },
            "hyperparameters": {"ppo": 5},
        },
        probe={"protocol": ["convergd"], "n_frame": 3},
        study={"n_trials": 1, "search": {"coef": {"choices": [1]}}},
    )
    with pytest.raises(GridError) as refusal:
        read_grid(path)
    message = str(refusal.value)
    assert message.startswith(f"{path}:\n")
    for part in (
        "Did you mean 'breakout'",
        "a name in `games`, got 3",
        "`algos` of ['a2c', 'crossq', 'dqn', ",
        "'tqc', 'trpo'], got 'ars'",
        "got 'infonec'. Did you mean 'infonce'?",
        "ints from 0 to 2**31 - 1, got -1",
        "each of `seeds` once, got 0 more than once",
        "`n_timesteps` to be an int >= 1, got 0",
        "Unknown entry: 'n_seeds'",
        "Unknown setting in [train]: 'n_env'. Did you mean 'n_envs'?",
        "Unknown setting in [train]: 'n_epochs'. Did you mean `hyperparameters.n_epochs`?",
        "`train.n_pairs` to be an int >= 2, got 0",
        "`train.infonce_coef` to be a finite number >= 0, got True",
        "Unknown setting in [probe]: 'n_frame'. Did you mean 'n_frames'?",
        *("'halt'", "'coef'"),
        "got 'cpd'. Did you mean 'cpc'?",
        "ppo` to be a table",
        "got 'convergd'. Did you mean 'converged'?",
    ):
        assert part in message, part


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": {"mine": {"gap": 1}}}, r"setting in \[arm\.mine\]: 'gap'"),
        ({"arm": {"infonce": {}}}, "not to be a built-in arm"),
        (
            {"arm": {"strong": {}, "mine": {}}},
            r"each \[arm\.\*\] also in `arms`.*got mine, strong there",
        ),
        (
            {"arms": ["extra_updates"], "train": {"hyperparameters": {"ppo": {"n_epochs": 5}}}},
            "`n_epochs` common to all arms below the 5 of 'extra_updates', got 5",
        ),
        (
            {"arms": ["frozen_random"], "train": {"pretrained": "x"}},
            "no `pretrained` common to all arms with 'frozen_random'.*got 'x'",
        ),
        *(
            ({"arm": {name: {}}}, f"to be named with letters.*got {re.escape(repr(name))}")
            for name in ("../../evil", "a b", "", "_x", "untrained", "trial_003", "x" * 65, "a\n")
        ),
        ({"arm": {"mine": 3}}, r"a table \[arm\.mine\], got 3"),
        ({"games": []}, "`games` to be a list of at least one"),
        ({"games": "pong"}, "`games` to be a list"),
        (
            {"train": {"infonce_coef": -1}},
            "`train.infonce_coef` to be .* >= 0, got -1",
        ),
        ({"train": {"horizons": [0]}}, "horizons"),
        (
            {"train": {"max_grad_ratio": 0}},
            "`train.max_grad_ratio` to be a finite number > 0, got 0",
        ),
        (
            {"train": {"decoupled_learning_rate": 1e-3}},
            "'baseline' with ppo: .*`decoupled_learning_rate` with `decoupled`, got it without",
        ),
        ({"train": {"decoupled": 1}}, "`train.decoupled` to be true or false, got 1"),
        ({"train": {"positives": "past"}}, "positives"),
        ({"train": {"precision": "fp16"}}, r"Expected `train.precision` .*got 'fp16'"),
        ({"train": {"device": "cudaa"}}, r"\[train\]: Expected `device` .*got 'cudaa'"),
        ({"train": {"device": "meta"}}, r"\[train\]: Expected `device` .*got 'meta'"),
        ({"arm": {"mine": {"on_nan": "halt"}}}, r"Expected `arm.mine.on_nan`.*got 'halt'"),
        ({"train": {"hyperparameters": {"policy_kwargs": {"a": 1}}}}, "policy_kwargs` .* got {'a'"),
        ({"train": {"hyperparameters": {"pppo": {"gamma": 1}}}}, "algorithms a2c, .*dqn, ppo"),
        ({"train": {"hyperparameters": {"ppo": {"gamma": {}}}}}, r"\.ppo\.gamma` .*got {}"),
        ({"train": {"hyperparameters": {"gamma": float("nan")}}}, "finite number.* got nan"),
        ({"train": {"hyperparameters": {"gamma": [1]}}}, r"Expected `gamma` to be .* got \[1\]"),
        ({"train": {"hyperparameters": {"dqn": {"train_freq": [[1]]}}}}, r"got \[\[1\]\]"),
        (
            {"algos": ["dqn"], "train": {"hyperparameters": {"train_freq": [1, "week"]}}},
            r"dqn: Expected `train_freq` .*got \(1, 'week'\)",
        ),
        ({"probe": {"protocol": []}}, r"probe\.protocol` to be a list of at least one"),
        ({"probe": {"labels": "corected"}}, "Did you mean 'corrected'"),
        ({"probe": {"policy": "random_without_noop"}}, "Did you mean 'random-without-noop'"),
        ({"probe": {"seeds": []}}, r"probe\.seeds` to be a list of at least one int >= 0"),
        ({"probe": {"seeds": [-1]}}, r"probe\.seeds` .*got \[-1\]"),
        ({"probe": {"data_seed": 0.5}}, r"probe\.data_seed` to be an int >= 0, got 0\.5"),
        ({"envs": ["ALE/Pong-v5"]}, "games in `games`, got 'ALE/Pong-v5' in `envs`"),
        ({"envs": [5]}, "Gymnasium id in `envs`, got 5"),
        ({"envs": ["a:X-v0", "b:X-v0"]}, "folders have different names, got X-v0 twice"),
        ({"games": ["pong"], "envs": ["my:pong"]}, "folders have different names, got pong twice"),
        ({"envs": ["Ant-v5"], "probe": {}}, "with `games` alone.* got `envs` Ant-v5"),
        ({"train": {"normalize": True}}, "`normalize` with `envs` alone"),
        (
            {"probe": {}, "train": {"isolated": True}},
            "without `isolated = true`, got baseline, inf",
        ),
        ({"probe": {}, "arms": ["a"], "arm": {"a": {"isolated": True}}}, "= true`, got a: the pol"),
        (
            {"probe": {"protocol": ["converged", "ridge"]}},
            "other than 'ridge',.* no place in a report.*--features-of CELL --protocol ridge",
        ),
        ({"probe": {}, "games": ["pong", "atlantis"]}, "with RAM labels .*got 'atlantis'"),
    ],
)
def test_each_problem_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GridError, match=message):
        make_grid({**GRID, "arms": ["baseline", "infonce"], **changes})


@pytest.mark.parametrize("where", ["train", "arm.mine"])
def test_hyperparameters_of_an_algorithm_that_nothing_trains_are_named(where: str) -> None:
    table = {"hyperparameters": {"ppo": {"n_epochs": 2}, "dqn": {"gamma": 0.9}}}
    tables = {"train": table} if where == "train" else {"arms": ["mine"], "arm": {"mine": table}}
    grid = {name: value for name, value in GRID.items() if name != "algos"}
    message = rf"`{where}.hyperparameters` for `algos` \['ppo'\] alone, got a table for 'dqn'"
    with pytest.raises(GridError, match=message):
        make_grid({**grid, **tables})
    make_grid({**grid, **tables, "algos": ["ppo", "dqn"]})


def test_what_does_not_go_together_is_named_at_once_when_each_table_is_right() -> None:
    content = {
        **{**GRID, "games": ["pong", "atlantis"], "arms": ["mine", "own"]},
        "train": {"hyperparameters": {"gama": 1, "n_epoch": 1}},
        "arm": {"mine": {"context_length": 3}, "own": {"isolated": True}},
        "probe": {"n_frames": 7},
        "study": {"n_trials": 1, "search": {"context_length": {"choices": [3]}}},
    }
    together = (
        "'gama'",
        "'n_epoch'. Did you mean 'n_epochs'?",
        "'mine' with ppo: Expected `context_length` with",
        "[probe]: Expected `--n-frames` to be a finite number >= 8, got 7",
        "'atlantis'",
        "without `isolated = true`, got own",
        "[study.search]: Expected `context_length` with",
    )
    with pytest.raises(GridError) as refusal:
        make_grid(content)
    for part in together:
        assert part in str(refusal.value), part
    with pytest.raises(GridError) as refusal:
        make_grid({**content, "seeds": [-1]})
    assert len(str(refusal.value).splitlines()) == 1, "no guesses beside what is wrong alone"


def test_an_encoder_must_be_there_for_a_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_grid(tmp_path / "grid.toml", train={"pretrained": "none.safetensors"})
    with pytest.raises(
        GridError, match=r"`train\.pretrained` to be a file, got 'none\.safetensors'"
    ):
        parse_grid(path.read_bytes(), path, check_files=True)
    assert read_grid(path).train == {"pretrained": "none.safetensors"}, "as for a report elsewhere"
    (tmp_path / "none.safetensors").touch()
    parse_grid(path.read_bytes(), path, check_files=True)


@pytest.mark.parametrize("content", [b"games = [", b"\xff\xfe", b"[" * 100_000, b"x" * 2**21])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "grid.toml"
    path.write_bytes(content)
    with pytest.raises(GridError, match="Expected a grid"):
        read_grid(path)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_NAMES = st.sampled_from([*GRID, "algos", "arm", "probe", "x"])


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(_NAMES, _VALUES))
def test_whatever_comes_the_error_is_the_documented_one(changes: dict[str, Any]) -> None:
    with contextlib.suppress(GridError):
        make_grid({**GRID, **changes})


@pytest.mark.parametrize("value", [4, "x"])
def test_a_control_stays_one_beside_smaller_values_and_those_sb3_will_refuse(value: Any) -> None:
    common = {"hyperparameters": {"ppo": {"n_epochs": value}, "dqn": {"gradient_steps": 9}}}
    assert list(control_problems(common, "extra_updates", "ppo")) == []


def test_settings_of_vectors_are_legal_although_the_preset_comes_with_the_environment() -> None:
    vectors = {name: each for name, each in GRID.items() if name != "games"}
    make_grid({**vectors, "envs": ["Pendulum-v1"], "train": {"encoder_updates": 3}})
    with pytest.raises(GridError, match="`encoder_updates` with isolated=True alone"):
        make_grid(
            {**vectors, "envs": ["Pendulum-v1"], "train": {"preset": "cpc", "encoder_updates": 3}}
        )
