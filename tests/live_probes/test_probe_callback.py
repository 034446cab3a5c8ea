"""ProbeCallback: scores of the current features, and a training that never notices."""

import gc
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, ConvertCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.utils import set_random_seed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_infonce import InfoNCECallback, InfoNCEExtractor, ProbeCallback, make_atari_vec_env
from rl_infonce.agents.features import acting_extractor, feature_function, untrained_policy
from rl_infonce.atari import labelled_games
from rl_infonce.live_probes.probe_callback import QUICK
from rl_infonce.live_probes.probe_inputs import live_task
from rl_infonce.live_probes.probe_scalars import chart_layout, probe_scalars
from rl_infonce.probing import (
    Anand2019,
    LabelledObservations,
    extract_features,
    make_task,
    probe_features,
)
from tests.further import further
from tests.sb3.labelled import stamped_observations
from tests.sb3.worlds import ALGORITHMS, N_STEPS, assert_same_weights, policy_kwargs, record_logger

pytestmark = pytest.mark.filterwarnings("ignore:ProbeCallback leaves out labels")  # a constant

LABELLED = stamped_observations()


def probe(probe_freq: int = 20, **settings: Any) -> ProbeCallback:
    settings.setdefault("figures", False)
    return ProbeCallback(LABELLED, probe_freq, **settings)


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def logged(model: BaseAlgorithm, folder: Path, *formats: str) -> BaseAlgorithm:
    model.set_logger(configure(str(folder), list(formats or ("tensorboard",))))
    return model


def events_of(
    callback: ProbeCallback, folder: Path, model: BaseAlgorithm | None = None
) -> EventAccumulator:
    """Train PPO or a model with a callback, and return what TensorBoard reads."""
    logged(model or ALGORITHMS["PPO"](), folder).learn(64, callback=callback)
    return read(folder)


def on_step(call: Callable[[BaseAlgorithm], object]) -> BaseCallback:
    """Return a callback that does something with the model at every step."""
    return ConvertCallback(lambda local, _: call(local["self"]) is None or True)


# -- training does not notice ----------------------------------------------------------------------


def streams(model: BaseAlgorithm) -> tuple[Any, ...]:
    name, keys, *position = np.random.get_state()  # noqa: NPY002 (the host's own stream)
    extractor = acting_extractor(model.policy)
    session = getattr(extractor, "_session", None)
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        (name, np.asarray(keys).tolist(), position),
        model.action_space.np_random.bit_generator.state,
        None if session is None else session.rng.bit_generator.state,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extractor"),
    [
        further("PPO", NatureCNN),
        ("PPO", InfoNCEExtractor),
        further("DQN", NatureCNN),
        ("DQN", InfoNCEExtractor),
        further("SAC", NatureCNN),
        further("QRDQN", InfoNCEExtractor),
    ],
)
def test_weights_and_streams_are_the_same_to_the_last_bit(
    name: str, extractor: type[NatureCNN], tmp_path: Path
) -> None:
    plain = ALGORITHMS[name](policy_kwargs(extractor))
    plain.learn(N_STEPS)
    after_plain = streams(plain)
    model = logged(ALGORITHMS[name](policy_kwargs(extractor)), tmp_path)
    # another seed than the model's: a stream that is reseeded alike would not show
    callback = probe(30, seed=7, figures=name == "PPO", projector=name == "PPO")
    model.learn(N_STEPS, callback=callback)
    assert len(callback.history) >= 2
    assert_same_weights(model.policy, plain.policy)
    assert streams(model) == after_plain


def test_other_curves_are_what_they_were_without_the_callback(tmp_path: Path) -> None:
    numbers = []
    for callback in (None, probe(27)):
        model = ALGORITHMS["PPO"]()
        numbers.append(record_logger(model))
        model.learn(N_STEPS, callback=callback)
    plain, probed = numbers
    timed = {"time/fps", "time/time_elapsed"}
    for tag in set(plain) - timed:
        assert probed[tag] == plain[tag], tag


def modes_after(name: str, *callbacks: BaseCallback) -> list[list[bool]]:
    """Return the mode of every module at every step, after some callbacks."""
    seen: list[list[bool]] = []
    note = on_step(lambda model: seen.append([each.training for each in model.policy.modules()]))
    ALGORITHMS[name]().learn(N_STEPS, callback=[*callbacks, note])
    assert seen
    return seen


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_modes_are_what_they_were(name: str) -> None:
    assert modes_after(name, probe(30)) == modes_after(name)


# -- the numbers -----------------------------------------------------------------------------------


def test_event_files_hold_the_scores_computed_by_hand(tmp_path: Path) -> None:
    model = logged(ALGORITHMS["PPO"](), tmp_path)
    model.learn(N_STEPS, callback=probe(20))
    events = read(tmp_path)
    task = make_task(LABELLED, np.random.default_rng(0))
    steps = [event.step for event in events.Scalars("probe/f1_mean")]
    # 2 environments: every 40 steps; at the start; and after the last update instead of at 120
    assert steps == [0, 40, 80, 128]

    def by_hand(policy: Any) -> Any:
        features = extract_features(feature_function(policy), LABELLED.observations)
        return probe_features(features, task, protocol=QUICK)[0]

    now, untrained = by_hand(model), by_hand(untrained_policy(model, 0))
    assert set(now.variables) == {"disc_x", "disc_y"}
    last = {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    assert last["probe/f1_mean"] == pytest.approx(now.mean.f1_weighted)
    bounds = [last[f"probe/f1_mean_{side}"] for side in ("low", "high")]
    assert bounds == pytest.approx(now.intervals["mean"])
    assert last["probe/accuracy_mean"] == pytest.approx(now.mean.accuracy)
    assert last["probe/f1_place"] == pytest.approx(now.categories["place"].f1_weighted)
    assert last["probe_variables/disc_x"] == pytest.approx(now.variables["disc_x"].f1_weighted)
    assert last["probe/untrained_f1_mean"] == pytest.approx(untrained.mean.f1_weighted)
    assert last["probe/majority_f1_mean"] < last["probe/untrained_f1_mean"]
    assert last["probe/seconds"] > 0
    lines = {event.value for event in events.Scalars("probe/untrained_f1_mean")}
    assert len(lines) == 1


def test_the_layout_names_curves_that_exist(tmp_path: Path) -> None:
    tags = events_of(probe(), tmp_path).Tags()
    layout = chart_layout(["converged"], ["place", "slow"])
    assert list(layout["probe"]) == ["F1 mean", "F1 place", "F1 slow"]
    assert {tag for chart in layout["probe"].values() for tag in chart} <= set(tags["scalars"])
    assert tags["tensors"] == ["custom_scalars__config__"]


def test_the_second_protocol_has_a_section_of_its_own(tmp_path: Path) -> None:
    callback = probe(1000, protocols=(Anand2019(max_epochs=2), QUICK))
    events = events_of(callback, tmp_path)
    for section, protocol in (("probe", "converged"), ("probe_anand2019", "anand2019")):
        expected = callback.history[-1][1][protocol].mean.f1_weighted
        assert events.Scalars(f"{section}/f1_mean")[-1].value == pytest.approx(expected)


def test_names_fit_the_table_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    callback = probe(1000)
    ALGORITHMS["PPO"](verbose=1).learn(64, callback=callback)
    shown = capsys.readouterr().out
    assert "untrained_f1_mean" in shown
    assert "disc_x" not in shown  # TensorBoard only
    assert "f1_mean_low" not in shown
    assert callback.majority is not None
    scores = callback.history[-1][1]["converged"]
    numbers = probe_scalars(scores, callback.untrained["converged"], callback.majority)
    assert {tag.split("/")[0] for tag in numbers} == {"probe", "probe_variables"}
    # SB3's table cuts names at 36 characters, section left out
    assert all(len(tag.split("/")[1]) <= 33 for tag in numbers)


def test_the_untrained_network_is_not_the_one_that_was_trained_before() -> None:
    model = ALGORITHMS["PPO"]()
    with torch.no_grad():
        for parameter in acting_extractor(model.policy).parameters():
            parameter.mul_(3.0)
    first, second = probe(1000), probe(1000)
    model.learn(64, callback=first)
    model.learn(64, callback=second)  # counts from 0 again
    assert second.untrained == first.untrained
    assert second.history[0][1] != second.untrained


# -- when ------------------------------------------------------------------------------------------


def test_a_run_shorter_than_the_frequency_is_probed_at_both_ends() -> None:
    callback = probe(10_000)
    ALGORITHMS["DQN"]().learn(N_STEPS, callback=callback)
    assert [step for step, _ in callback.history] == [0, N_STEPS]


def test_continued_training_continues_the_curve(tmp_path: Path) -> None:
    callback = probe(16)
    model = ALGORITHMS["PPO"]()
    model.learn(64, callback=callback)
    untrained = callback.untrained
    model.learn(64, callback=callback, reset_num_timesteps=False)
    assert [step for step, _ in callback.history] == [0, 32, 64, 96, 128]
    assert callback.untrained is untrained
    model.learn(64, callback=callback)
    assert [step for step, _ in callback.history] == [0, 32, 64]


def test_it_takes_its_place_among_other_callbacks(tmp_path: Path) -> None:
    callback = probe(1000)
    others: list[BaseCallback] = [InfoNCECallback(), CheckpointCallback(16, str(tmp_path))]
    ALGORITHMS["PPO"]().learn(64, callback=[others[0], callback, others[1]])
    assert [step for step, _ in callback.history] == [0, 64]
    assert list(tmp_path.glob("*.zip"))


def test_features_that_cannot_be_probed_give_a_warning_and_training_goes_on() -> None:
    model = ALGORITHMS["PPO"](policy_kwargs(NatureCNN), learning_rate=0.0)
    callback = probe(16)

    def kill(trained: BaseAlgorithm) -> None:
        if trained.num_timesteps == 20:
            extractor: Any = acting_extractor(trained.policy)
            extractor.linear[0].bias.data.fill_(-1e6)

    with pytest.warns(RuntimeWarning, match=r"Step (32|64) has no probe: .*vary"):
        model.learn(64, callback=[on_step(kill), callback])
    assert [step for step, _ in callback.history] == [0]
    assert model.num_timesteps == 64


def test_a_probe_that_lacks_memory_gives_a_warning_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack(*_arguments: Any, **_settings: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, callback = ALGORITHMS["PPO"](), probe(32)
    where = "rl_infonce.live_probes.probe_callback.probe_features"
    at_start = on_step(lambda _: monkeypatch.setattr(where, lack))
    with pytest.warns(RuntimeWarning, match=r"Step (32|64) has no probe: CUDA out of memory"):
        model.learn(64, callback=[at_start, callback])
    assert model.num_timesteps == 64


def test_an_untrained_network_that_cannot_be_probed_does_not_stop_training() -> None:
    class Blank(NatureCNN):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return super().forward(observations) * 0

    callback = probe(1000)
    model = ALGORITHMS["PPO"](policy_kwargs(Blank))
    with pytest.warns(RuntimeWarning) as warned:
        model.learn(64, callback=callback)
    messages = [str(each.message) for each in warned]
    assert any("untrained network has no probe, and the most frequent" in each for each in messages)
    assert callback.untrained == {"converged": callback.majority}
    assert model.num_timesteps == 64


def test_few_games_to_test_on_are_warned_of() -> None:
    few = np.isin(LABELLED.episode_ids, np.unique(LABELLED.episode_ids)[:10])
    labelled = LabelledObservations(
        LABELLED.observations[few],
        {name: values[few] for name, values in LABELLED.labels.items()},
        LABELLED.episode_ids[few],
    )
    with pytest.warns(UserWarning, match="tests on 2 games .* Raise `n_frames`"):
        live_task(labelled, np.random.default_rng(0), threshold=0.1, is_own=False)


# -- refusals --------------------------------------------------------------------------------------


def test_a_game_without_labels_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="The labelled games are") as refused:
        ProbeCallback("tetris")
    assert all(game in str(refused.value) for game in labelled_games())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"probe_freq": 0}, ValueError, "probe_freq"),
        ({"n_frames": 10}, ValueError, "n_frames"),
        ({"protocols": ("linear",)}, ValueError, "'anand2019', 'converged'"),
        ({"protocols": "converged"}, ValueError, "distinct protocols"),
        ({"protocols": ()}, ValueError, "distinct protocols"),
        ({"protocols": QUICK}, ValueError, r"list of distinct protocols .* got Converged\("),
        ({"seed": -1}, ValueError, "seed"),
        ({"figures": 1}, TypeError, "figures"),
        ({"label_version": "mine"}, ValueError, "anand2019"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ProbeCallback("pong", **settings)


def test_another_image_size_is_refused_before_training() -> None:
    images = LABELLED.observations[:, :3]
    labelled = LabelledObservations(images, LABELLED.labels, LABELLED.episode_ids)
    model = ALGORITHMS["PPO"]()
    with pytest.raises(ValueError, match=r"\(3, 36, 36\).*got \(4, 36, 36\)"):
        model.learn(64, callback=ProbeCallback(labelled))
    assert model.num_timesteps == 0


# -- figures ---------------------------------------------------------------------------------------


def test_figures_and_projector_reach_tensorboard(tmp_path: Path) -> None:
    model = logged(ALGORITHMS["PPO"](), tmp_path, "tensorboard", "csv", "json", "stdout")
    model.learn(64, callback=probe(1000, figures=True, projector=True))
    model.logger.close()
    events = read(tmp_path)
    assert events.Tags()["images"] == [
        f"probe_figures/{name}" for name in ("critic_k4", "heat_map", "predictions", "table")
    ]
    assert [image.step for image in events.Images("probe_figures/table")] == [0, 64]
    (config,) = tmp_path.glob("projector_config.pbtxt")
    assert "features:00064" in config.read_text()
    (metadata,) = tmp_path.glob("*/features/metadata.tsv")
    header, *rows = metadata.read_text().splitlines()
    assert header.split("\t") == ["episode", "disc_y", "disc_x"]
    assert len(rows) > 10
    columns, *_ = (tmp_path / "progress.csv").read_text().splitlines()
    assert columns.split(",").count("probe/f1_mean") == 1


@pytest.mark.thorough
def test_no_figure_outlives_its_probe(tmp_path: Path) -> None:
    matplotlib_figure = pytest.importorskip("matplotlib.figure")
    model = logged(ALGORITHMS["PPO"](), tmp_path, "tensorboard")
    gc.collect()
    gc.disable()  # as good as off while a training makes few objects

    def figures() -> list[Any]:
        return [each for each in gc.get_objects() if type(each) is matplotlib_figure.Figure]

    of_other_tests = {id(each) for each in figures()}
    try:
        model.learn(64, callback=probe(1000, figures=True))
        alive = [each for each in figures() if id(each) not in of_other_tests]
    finally:
        gc.enable()
        model.logger.close()
    assert not alive


def test_without_matplotlib_there_are_scalars_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_infonce.live_probes.probe_callback.has_matplotlib", lambda: False)
    with pytest.warns(UserWarning, match="matplotlib is missing") as warned:
        tags = events_of(probe(16, figures=True), tmp_path).Tags()
    assert sum("matplotlib" in str(each.message) for each in warned) == 1
    assert tags["images"] == []
    assert "probe/f1_mean" in tags["scalars"]


def test_plain_models_have_no_picture_of_a_critic(tmp_path: Path) -> None:
    plain = ALGORITHMS["PPO"](policy_kwargs(NatureCNN))
    events = events_of(probe(1000, figures=True), tmp_path, plain)
    assert "probe_figures/critic_k4" not in events.Tags()["images"]


# -- a real game -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of a callback that collected a thousand frames."""
    folder = tmp_path_factory.mktemp("pong")
    ProbeCallback("pong", n_frames=1000, cache_folder=folder)._labelled()
    return folder


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore:ProbeCallback tests on 2 games")
def test_pong_is_collected_once_whatever_the_training_seed(pong: Path, tmp_path: Path) -> None:
    files = sorted(pong.glob("frames/*/*/agent.npy"))
    assert len(files) == 8
    times = [path.stat().st_mtime_ns for path in files]
    env = make_atari_vec_env("pong", n_envs=2, seed=0)
    kwargs = policy_kwargs(NatureCNN)
    model = PPO("CnnPolicy", env, n_steps=16, batch_size=32, policy_kwargs=kwargs, seed=0)
    callback = ProbeCallback("pong", n_frames=1000, cache_folder=pong)
    logged(model, tmp_path / "run").learn(32, callback=callback)
    assert [step for step, _ in callback.history] == [0, 32]
    assert "probe_figures/predictions" in read(tmp_path / "run").Tags()["images"]
    data = callback.history[-1][1]["converged"].settings["data"]
    assert (data["game"], data["view"], data["n_steps"]) == ("pong", "agent", 1000)
    set_random_seed(1)
    again = ProbeCallback("pong", n_frames=1000, cache_folder=pong)._labelled()
    assert again.provenance["frames_hash"] == data["frames_hash"]
    # other labels come from the same frames
    other = ProbeCallback("pong", n_frames=1000, cache_folder=pong, label_version="anand2019")
    assert other._labelled().provenance["label_version"] == "anand2019"
    assert other._labelled().provenance["frames_hash"] == data["frames_hash"]
    assert [path.stat().st_mtime_ns for path in files] == times


@pytest.mark.atari
def test_frames_of_other_settings_in_the_cache_are_refused_by_name(
    pong: Path, tmp_path: Path
) -> None:
    shutil.copytree(pong, tmp_path, dirs_exist_ok=True)
    (folder,) = (tmp_path / "frames").iterdir()
    folder.rename(folder.with_name(folder.name.replace("1000", "1001")))
    other = ProbeCallback("pong", n_frames=1001, cache_folder=tmp_path)
    with pytest.raises(ValueError, match=r"n_steps=1000 \(not 1001\)"):
        other._labelled()
