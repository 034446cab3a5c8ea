"""Hyperparameters are literals; nothing is evaluated."""

import re

import pytest

from rl_infonce.hyperparameters import parse_hyperparameters


def test_values_are_literals_and_schedules() -> None:
    words = ["n_epochs:6", "learning_rate:lin_2.5e-4", "ent_coef:-1e-2", "target_kl:None"]
    assert parse_hyperparameters([*words, "normalize_advantage:True"]) == {
        "n_epochs": 6,
        "learning_rate": "lin_2.5e-4",
        "ent_coef": -0.01,
        "target_kl": None,
        "normalize_advantage": True,
    }
    assert parse_hyperparameters(["train_freq:(1, 'episode')"]) == {"train_freq": [1, "episode"]}
    assert parse_hyperparameters([]) == {}


def test_words_of_another_flag_name_it_and_may_be_plain_text() -> None:
    words = ["timeout_min:240", "slurm_partition:gpu", "slurm_qos:lin_a", "comment:'a b'"]
    expected = {"timeout_min": 240, "slurm_partition": "gpu", "slurm_qos": "lin_a"}
    found = parse_hyperparameters(words, flag="--slurm", plain_text=True)
    assert found == {**expected, "comment": "a b"}
    with pytest.raises(ValueError, match="`--slurm` as name:value, got 'timeout_min=240'"):
        parse_hyperparameters(["timeout_min=240"], flag="--slurm", plain_text=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["n_epochs"], "name:value, got 'n_epochs'"),
        (["n_epochs=6"], "name:value, got 'n_epochs=6'"),
        ([":6"], "name:value, got ':6'"),
        (["n_epochs:"], "literal, got 'n_epochs:'"),
        (["n_epochs:__import__('os').system('true')"], "literal"),
        (["n_epochs:(lambda: 6)()"], "literal"),
        (["n_epochs:" + "(" * 10_000], "literal"),
        (["clip_range:lin_fast"], 'Expected `clip_range` as a number or "lin_0.1"'),
        (["learning_rate:lin_nan"], "from 0.1 to 0, got 'lin_nan'"),
        (["learning_rate:lin_inf"], "from 0.1 to 0, got 'lin_inf'"),
        (["n_epochs:6", "n_epochs:7"], "once, got 'n_epochs' twice"),
    ],
)
def test_other_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_hyperparameters(words)
