"""What holds numbers may be an array, a list or a tensor, to the same end everywhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rl_infonce.probing import (
    Anand2019,
    Converged,
    LabelledObservations,
    Split,
    drop_low_entropy,
    drop_seen_frames,
    entropy,
    extract_features,
    f1_differences,
    fit_probe,
    frame_digests,
    knn_predictions,
    knn_scores,
    make_task,
    mean_position_scores,
    probe_features,
    ridge_probe,
    score,
    score_predictions,
    split_episodes,
)
from rl_infonce.probing.arrays import as_features

Form = Callable[[npt.NDArray[Any]], Any]
K = 80
RNG = np.random.default_rng(0)
# halves, which bfloat16 holds exactly
VECTORS = (RNG.integers(-20, 20, (K, 3)) / 2).astype(np.float32)
LABELS = {"sign": (VECTORS[:, 0] > 0).astype(np.int64), "digit": RNG.integers(0, 3, K)}
EPISODES = np.repeat(np.arange(10), 8)
TASK = make_task(LabelledObservations(VECTORS, LABELS, EPISODES), 0)
SPLIT, TEST = TASK.split, TASK.split.test


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.tensor(array, requires_grad=array.dtype.kind == "f")


def _bfloat16(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.tensor(array).bfloat16() if array.dtype.kind == "f" else torch.tensor(array)


FORMS: dict[str, Form] = {
    "list": lambda array: array.tolist(),
    "tensor": _tensor,
    "bfloat16": _bfloat16,
    "view": lambda array: array[::-1].copy()[::-1],
}


def results(form: Form) -> dict[str, Any]:
    """Return what every function says of the same numbers in this form."""
    labels = {name: form(values) for name, values in LABELS.items()}
    vectors, split = form(VECTORS), Split(*map(form, SPLIT))
    guessed = {name: form(values[TEST] // 2) for name, values in LABELS.items()}
    positions = {"x": form(VECTORS[:, 0])}
    quick, published = Converged(penalties=(0.1,)), Anand2019(max_epochs=1)
    probe = fit_probe(vectors, labels, split, protocol=quick)
    drawn = fit_probe(vectors, labels, split, protocol=published, episode_ids=form(EPISODES))
    first = form(np.arange(5))
    return {
        "task": make_task(LabelledObservations(vectors, labels, form(EPISODES)), 0).split.test,
        "features": extract_features(lambda x: x.float(), vectors),
        "digests": frame_digests(form(np.arange(K))),
        "split": split_episodes(form(EPISODES), np.random.default_rng(0)).test,
        "new": drop_seen_frames(split, form(np.arange(K) // 12)).test,
        "nats": entropy(labels["digit"]),
        "kept": list(drop_low_entropy(labels, split.train)[0]),
        "predicted": probe.predict(vectors)["sign"],
        "drawn": drawn.predict(vectors)["sign"],
        "scores": probe_features(vectors, TASK, protocol=quick)[0].mean,
        "neighbours": knn_predictions(vectors, labels, split)["digit"],
        "knn": knn_scores(vectors, TASK).mean,
        "ridge": ridge_probe(vectors, positions, split)[0]["x"],
        "mean_position": mean_position_scores(positions, split)["x"],
        "score": score(guessed["digit"], form(LABELS["digit"][TEST])),
        "given": score_predictions(guessed, TASK, protocol="own", positions=first).mean,
        "paired": f1_differences(guessed, guessed, TASK, positions=first)["mean"],
    }


EXPECTED = results(np.asarray)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_numbers_gives_the_same(form: str) -> None:
    found = results(FORMS[form])
    for name, expected in EXPECTED.items():
        for one, other in zip(np.atleast_1d(found[name]), np.atleast_1d(expected), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)


def test_features_beyond_float32_are_not_scored() -> None:
    large: Any = VECTORS.astype(np.float64) * [1, 1, 1e300] + [0, 0, 1e300]
    with pytest.raises(ValueError, match=r"NaN or infinity in .* of 80 rows and 1 of 3 dim"):
        probe_features(large, TASK)


def test_no_class_is_predicted_from_nan() -> None:
    probe = fit_probe(VECTORS, LABELS, SPLIT, protocol=Converged(penalties=(0.1,)))
    with pytest.raises(ValueError, match="NaN or infinity in 80 of 80 rows"):
        probe.predict(VECTORS * np.nan)


@pytest.mark.parametrize("kind", ["complex64", "str", "object"])
def test_features_are_real_numbers(kind: str) -> None:
    with pytest.raises(TypeError, match="`features` to be real numbers, got"):
        as_features(VECTORS.astype(kind))


@pytest.mark.parametrize("probed", [fit_probe, knn_predictions])
def test_masks_are_no_rows(probed: Callable[..., Any]) -> None:
    of_parts: Any = (np.isin(np.arange(K), rows) for rows in SPLIT)
    masks = Split(*of_parts)
    with pytest.raises(TypeError, match=r"train rows of `split` .* got bool\. np\.flatnonzero"):
        probed(VECTORS, LABELS, masks)


@pytest.mark.parametrize("probed", [fit_probe, knn_predictions, ridge_probe])
def test_labels_have_names(probed: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="to be a dictionary from names of variables to numbers"):
        probed(VECTORS, LABELS["sign"], SPLIT)


def test_observations_of_several_parts_are_refused_with_the_way_out() -> None:
    parts = {"image": VECTORS, "speed": VECTORS}
    with pytest.raises(TypeError, match=r"got a dictionary.*give features .* to `probe_features`"):
        LabelledObservations(parts, LABELS, EPISODES)
    with pytest.raises(TypeError, match="got a dictionary"):
        extract_features(torch.nn.Identity(), parts)


def test_an_encoder_returns_one_tensor() -> None:
    with pytest.raises(ValueError, match=r"return \[80, D\] for \(80, 3\), got tuple"):
        extract_features(lambda x: (x, x), VECTORS)  # type: ignore[arg-type, return-value]
