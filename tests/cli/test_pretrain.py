"""`rl-infonce pretrain` on real frames, then into probes and PPO."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce.atari.labelled_frames import LabelledFrames
from rl_infonce.atari.labels import labels_hash
from rl_infonce.cli import main, make_parser
from rl_infonce.cli import pretrain as pretrain_command
from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.networks.encoder_file import load_encoder, read_header, save_encoder
from rl_infonce.networks.pixel_encoder import PixelEncoder
from rl_infonce.pretraining import trainer
from rl_infonce.pretraining.curves import PretrainingCurves
from rl_infonce.training.atari_encoder import EncoderPlan
from tests.cli.running import errors_of, output_of, refusal
from tests.further import further

pytestmark = pytest.mark.atari


TINY = (
    *("--game", "breakout", "--n-frames", "600"),
    *("--batch-size", "4", "--device", "cpu", "--budget", "3"),
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*flags: str) -> list[str]:
    return ["pretrain", *TINY, *flags]


def pretrain(*flags: str) -> int:
    return main(words(*flags))


def test_an_encoder_is_pretrained_and_says_how(here: Path) -> None:
    printed = output_of(*words())
    folder = here / "pretrained" / "breakout-stdim-0"
    encoder = load_encoder(folder / "encoder.safetensors")
    assert isinstance(encoder, STDIMEncoder)
    provenance = read_header(folder / "encoder.safetensors")["provenance"]
    assert (provenance["game"], provenance["objective"], provenance["steps"]) == (
        "breakout",
        "stdim",
        3,
    )
    with safe_open(folder / trainer.CHECKPOINT, "pt") as file:
        history = json.loads(file.metadata()["progress"])["history"]
    assert provenance["validation_loss"] == min(each["validation_loss"] for each in history)
    curves = EventAccumulator(str(folder))
    curves.Reload()
    events = curves.Scalars("pretrain/validation_loss")
    assert [event.value for event in events] == pytest.approx(
        [each["validation_loss"] for each in history]
    )
    told = f"  rl-infonce probe --game breakout --features-of {folder.relative_to(here)}"
    rest = f" --policy random-without-noop --output {folder.relative_to(here)}/probes\n"
    assert f"{told}/encoder.safetensors{rest}" in printed, "of the play it was trained on"
    assert "3 steps in" in output_of(*words()), "a finished run is read again"
    said = errors_of(*words("--data-seed", "5"))
    assert "data_seed=1 (not 5)" in said, "another run is left alone"


def test_a_stopped_run_goes_on_and_its_curves_too(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = PretrainingCurves.draw

    def interrupt(self: PretrainingCurves, history: list[Any]) -> None:
        draw(self, history)
        if len(history) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingCurves, "draw", interrupt)
        assert pretrain("--micro-batch-size", "2", "--budget", "6") == 130
    assert "goes on from pretrained/breakout-stdim-0" in capsys.readouterr().err
    assert pretrain("--micro-batch-size", "2", "--progress", "--budget", "6") == 0
    captured = capsys.readouterr()
    assert "6 steps in" in captured.out
    assert "6/6" in captured.err
    folder = here / "pretrained" / "breakout-stdim-0"
    curves = EventAccumulator(str(folder)).Reload()
    steps = [event.step for event in curves.Scalars("pretrain/validation_loss")]
    assert steps == [1, 2, 3, 4, 5, 6]
    written = sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime)
    first, last = (EventAccumulator(str(path)).Reload() for path in written)
    before, after = (
        {each.value for each in life.Scalars("pretrain/frames_per_second")}
        for life in (first, last)
    )
    assert before < after, "the second life knows how fast the first was"


@pytest.mark.thorough
@pytest.mark.parametrize("at", [2, 3])
def test_no_point_of_the_curves_is_lost_or_drawn_twice(
    here: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    draw = PretrainingCurves.draw

    def killed(self: PretrainingCurves, history: list[Any]) -> None:
        if len(history) == at:  # saved, but not drawn
            raise KeyboardInterrupt
        draw(self, history)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingCurves, "draw", killed)
        assert pretrain() == 130
    for _ in range(2):
        assert pretrain() == 0
        events = EventAccumulator(str(here / "pretrained" / "breakout-stdim-0")).Reload()
        for name in ("validation_loss", "train_loss", "frames_per_second"):
            assert [each.step for each in events.Scalars(f"pretrain/{name}")] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "loss"),
    [
        (["nature"], []),
        further(["nature"], ["--infonce-coef", "0"]),
        further(["impala"], []),
        further(["nature", "--normalization", "layer", "--feature-activation", "linear"], []),
    ],
)
def test_what_agents_see_is_pretrained_and_trained_on(
    here: Path, encoder: list[str], loss: list[str]
) -> None:
    assert pretrain("--encoder", *encoder, "--objective", "infonce", "-o", "own") == 0
    pretrained: Any = load_encoder(here / "own" / "encoder.safetensors")
    assert isinstance(pretrained, PixelEncoder)
    form = dict(zip(encoder[1::2], encoder[2::2], strict=True))
    assert {f"--{n.replace('_', '-')}": v for n, v in pretrained.form.changes.items()} == form
    train = ["train", "--game", "breakout", "-n", "128", "--n-envs", "2", "--seed", "0"]
    flags = ["--device", "cpu", "--n-pairs", "8", "--no-progress", *loss]
    flags += ["--hyperparams", "n_steps:32", "n_epochs:1"]
    more = ["--pretrained", "own/encoder.safetensors", "--freeze-encoder"]
    assert "--pretrained own/encoder.safetensors" in output_of(*train, *flags, *more)
    from rl_infonce.agents.saved_extractor import read_encoder

    run = here / "logs" / "ppo" / "breakout_1"
    kept: Any = read_encoder(run / "model.zip")
    assert kept.form == pretrained.form
    noted = json.loads((run / "run.json").read_text())["sessions"][0]["loss"]
    assert pretrained.form.changes.items() <= noted.items()
    for name, tensor in pretrained.state_dict().items():
        assert torch.equal(kept.state_dict()[name], tensor)
    assert main([*train, *flags, *more[:2]]) == 0
    moved: Any = read_encoder(here / "logs" / "ppo" / "breakout_2" / "model.zip")
    first = next(iter(pretrained.state_dict()))
    assert not torch.equal(moved.state_dict()[first], pretrained.state_dict()[first])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pretrained", "none.safetensors"], "none.safetensors"),
        (["--pretrained", "screens.safetensors"], "Pretrain with --encoder nature"),
        (["--pretrained", "small.safetensors"], "images (4, 40, 40) instead of (4, 84, 84)"),
    ],
)
def test_encoders_that_cannot_be_trained_on_are_named(
    here: Path, flags: list[str], message: str
) -> None:
    save_encoder(STDIMEncoder(torch.Generator()), here / "screens.safetensors")
    small = PixelEncoder((4, 40, 40), generator=torch.Generator())
    save_encoder(small, here / "small.safetensors")
    assert message in refusal("train", "--game", "breakout", *flags)


def test_the_form_of_an_encoder_is_told_and_kept(here: Path) -> None:
    form = {"activation": "elu", "feature_activation": "simplicial"}
    flags = [word for n, v in form.items() for word in (f"--{n.replace('_', '-')}", str(v))]
    assert pretrain("--encoder", "nature", *flags) == 0
    path = here / "pretrained" / "breakout-stdim-nature-elu-simplicial-0" / "encoder.safetensors"
    encoder: Any = load_encoder(path)
    assert encoder.form.changes == form
    assert form.items() <= read_header(path)["provenance"].items()
    said = errors_of(*words("--encoder", "nature", "-o", str(path.parent)))
    assert "activation" in said, "another run is left alone"
    assert "`--activation` with --encoder nature or impala" in refusal(*words(*flags[:2]))
    assert "'gelu'" in refusal(*words("--encoder", "nature", "--activation", "gelu"))


def test_the_plan_has_the_defaults_of_the_flags() -> None:
    arguments = make_parser().parse_args(["pretrain", "--game", "pong"])
    assert pretrain_command.encoder_plan(arguments) == EncoderPlan("pong")
    assert EncoderPlan("ALE/Pong-v5") == EncoderPlan("pong")


def test_supervised_learns_labels_of_the_game(here: Path) -> None:
    assert pretrain("--objective", "supervised", "-o", "told") == 0
    with safe_open(here / "told" / trainer.CHECKPOINT, "pt") as file:
        n_outputs = file.get_tensor("objective.heads.weight").shape[0]
    assert n_outputs % 256 == 0
    assert n_outputs >= 3 * 256


@pytest.mark.thorough
def test_supervised_says_which_labels_it_learned_and_goes_on_with_no_others(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    labelled = LabelledFrames.labelled

    def note(self: LabelledFrames, *arguments: Any) -> Any:
        told.append(labelled(self, *arguments))
        return told[-1]

    monkeypatch.setattr(LabelledFrames, "labelled", note)
    supervised = ("--objective", "supervised", "-o", "told")
    printed = output_of(*words(*supervised, "--labels", "anand2019"))
    assert [each.provenance["label_version"] for each in told] == ["anand2019"]
    provenance = read_header(here / "told" / "encoder.safetensors")["provenance"]
    assert provenance["labels"] == "anand2019"
    assert provenance["labels_hash"] == labels_hash("breakout", "anand2019")
    assert "--policy random-without-noop --labels anand2019 --output told/probes\n" in printed
    assert "labels='anand2019' (not 'corrected')" in errors_of(*words(*supervised))
    monkeypatch.setattr(
        "rl_infonce.training.atari_encoder.labels_hash", lambda game, version: "another"
    )
    assert "labels_hash=" in errors_of(*words(*supervised, "--labels", "anand2019"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective", "st-dim"], "Did you mean 'stdim'"),
        (["--budget", "soon"], '"10m"'),
        (["--n-frames", "7"], "--n-frames"),
        (["--seed", "-1"], "--seed"),
        (["--seed", "99999999999999999999999"], "`--seed` to be a finite number >= 0 and <="),
        (["--batch-size", "1"], "batch_size"),
        (["--batch-size", "0"], "batch_size"),
        (["--learning-rate", "0"], "learning_rate"),
        (["--device", "abacus"], "cuda:N, and to work here, got 'abacus': "),
        (["--objective", "vae", "--encoder", "nature"], "`--encoder` stdim with --objective vae"),
        (
            ["--game", "pacman"],
            "nature or impala with pacman, whose screens are 250x160, got stdim",
        ),
        (["--gmae", "pong"], "pretrain: error: unknown: --gmae. Did you mean --game?"),
        (["--budgets=5"], "Did you mean --budget?"),
        (["pong"], "unknown: pong. See rl-infonce pretrain --help."),
        (["--labels", "corrected"], "`--labels` with --objective supervised only"),
        (["--objective", "supervised", "--labels", "anand"], "'anand2019'"),
        (["--objective", "supervised", "--game", "gopher"], "The labelled games are"),
    ],
)
def test_wrong_usage_exits_2_with_the_reason(here: Path, flags: list[str], message: str) -> None:
    assert message in refusal(*words(*flags))
    assert not (here / "pretrained").exists()


def test_a_run_that_cannot_be_says_why(here: Path) -> None:
    said = errors_of(*words("--objective", "cpc", "--n-frames", "400"))
    assert "too short. Expected an episode of at least 100" in said


def test_a_rank_without_others_writes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert "Encoder: lone/encoder.safetensors" in output_of(*words("-o", "lone"))
    assert (here / "lone" / "encoder.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_share_the_work(here: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    flags = [*TINY, "--precision", "fp32", "--budget", "3", "-o", "two"]
    own = [*command, "-m", "rl_infonce", "pretrain", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    answer = subprocess.run(own, capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert answer.stdout.count("Encoder: two/encoder.safetensors") == 1
    assert pretrain("-o", "one", "--precision", "fp32") == 0
    one, two = (load_encoder(here / name / "encoder.safetensors") for name in ("one", "two"))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
