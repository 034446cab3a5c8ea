"""Write the model card: what the hub shows about a bundle, and its metadata for search."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from rl_infonce.atari.games import games
from rl_infonce.files.digests import sha256_of
from rl_infonce.hub.bundle import Bundle
from rl_infonce.hub.client import library
from rl_infonce.hub.files import AGENT, ENCODER
from rl_infonce.report.formatting import counted, return_form
from rl_infonce.report.table import markdown_table

_TAGS = ["reinforcement-learning", "deep-reinforcement-learning", "stable-baselines3"]
_OWN_TAGS = ["rl-infonce", "contrastive-learning", "infonce"]


def game_id(game: str) -> str:
    """Return the name under which the hub lists models for a game; another id names itself.

    Example:
        >>> game_id("ms_pacman"), game_id("MiniGrid-Empty-5x5-v0")
        ('MsPacmanNoFrameskip-v4', 'MiniGrid-Empty-5x5-v0')
    """
    return game.title().replace("_", "") + "NoFrameskip-v4" if game in games() else game


def model_card(repo: str, bundle: Bundle) -> str:
    """Return README.md: metadata in YAML, then Markdown."""
    parts = [
        f"# {_title(bundle)}",
        _about(bundle),
        _use(repo, bundle),
        _files(bundle),
        *_returns(bundle),
        *_features(bundle),
        *_training(bundle),
    ]
    return f"---\n{_metadata(bundle)}\n---\n\n" + "\n\n".join(parts) + "\n"


def _title(bundle: Bundle) -> str:
    on = f" on {bundle.game}" if bundle.game else ""
    if AGENT in bundle.files:
        return f"{_algorithm(bundle)}{on}"
    return f"Encoder{on}: {bundle.architecture}"


def _algorithm(bundle: Bundle) -> str:
    return str(bundle.run.get("algorithm") or "agent").upper().replace("AGENT", "Agent")


def _about(bundle: Bundle) -> str:
    return (
        f"Encoder `{bundle.architecture}`, made with [Stable-Baselines3]"
        "(https://stable-baselines3.readthedocs.io) and rl_infonce: temporal InfoNCE (van den Oord "
        "et al. 2018) for its agents."
    )


def _use(repo: str, bundle: Bundle) -> str:
    imports, calls = ["from huggingface_hub import hf_hub_download"], []
    if ENCODER in bundle.files:
        imports.append("from rl_infonce.networks.encoder_file import load_encoder")
        calls.append(
            f'encoder = load_encoder(hf_hub_download("{repo}", "{ENCODER}"))'
            "  # uint8 [B, C, H, W] -> features [B, D]"
        )
    if AGENT in bundle.files:
        name, gives = (
            ("read_policy", "scores of actions [B, A]")
            if bundle.has_policy
            else ("read_encoder", "features [B, D]")
        )
        imports.append(f"from rl_infonce.agents import {name}")
        calls.append(
            f'{name.removeprefix("read_")} = {name}(hf_hub_download("{repo}", "{AGENT}"))'
            f"  # uint8 [B, C, H, W] -> {gives}"
        )
    code = "\n".join([*sorted(imports), "", *calls])
    shell = f"rl-infonce pull {repo} -o pulled"
    if bundle.has_policy and bundle.game in (None, *games()):  # others need their run's folder
        shell += f"\nrl-infonce evaluate --model pulled --game {bundle.game or 'GAME'}"
    return (
        "## Use\n\nNone of this executes code in a file, as `load` of Stable-Baselines3 would "
        "(pin `revision` to a commit):\n\n"
        f"```python\n{code}\n```\n\n```sh\n{shell}\n```"
    )


def _files(bundle: Bundle) -> str:
    rows = [[f"`{n}`", f"{len(c):,}", f"`{sha256_of(c)}`"] for n, c in bundle.files.items()]
    return "## Files\n\n" + markdown_table(["file", "bytes", "SHA-256"], rows)


def _returns(bundle: Bundle) -> Iterable[str]:
    found = bundle.evaluation
    if found is None:
        return
    settings = found["settings"]
    error = found["standard_error"]
    how = "best action" if settings.get("deterministic") else "sampled actions"
    of, played, cut = found["game"], "episode", ""
    if of in games():
        of, played = f"{of} in the game's own points", "game"
        how += f", epsilon {settings.get('epsilon')}"
        cut = (
            f", {counted(found['n_cut'], 'game')} cut after "
            f"{settings.get('max_frames_per_episode')} frames, and the others whole"
        )
    form = return_form([each["return"] for each in found["episodes"]], ".2f")
    spread = "" if error is None else f" ± {error:{form}} (standard error)"
    yield (
        f"## What it scores\n\nMean return **{found['mean_return']:{form}}**{spread}"
        f" over {counted(len(found['episodes']), played)} of {of}: {how}, "
        f"seed {settings.get('seed')}{cut}. "
        f"`evaluation.json` has every {played}, all settings and versions."
    )


def probe_rows(content: Mapping[str, Any], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return, per game, protocol and file, mean weighted F1 and what it is compared with.

    A row has the file's name as "encoder", "seeds", and the means over them, "f1", "untrained"
    (weights of the same architecture) and "majority"; a mean without scores is None.
    """
    cells = [e for e in content["cells"] if e["status"] == "done" and e["protocol"] != "ridge"]
    found = {(e["game"], e["protocol"], e["encoder"]) for e in cells if e["encoder"] in names}
    rows = []
    for game, protocol, key in sorted(found):
        own = [e for e in cells if (e["game"], e["protocol"]) == (game, protocol)]
        seeds = {e["seed"] for e in own if e["encoder"] == key}
        columns = _columns(content["encoders"], key)
        f1 = {
            name: _mean_f1([e for e in own if e["encoder"] in keys and e["seed"] in seeds])
            for name, keys in columns.items()
        }
        row = {"game": game, "protocol": protocol, "encoder": names[key], "seeds": sorted(seeds)}
        rows.append({**row, **f1})
    return rows


def _columns(encoders: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, set[str]]:
    """Return the keys of an encoder, of untrained weights like it and of the majority class."""
    untrained = ("random", encoders[key].get("description"))
    described = {key: (e.get("kind"), e.get("description")) for key, e in encoders.items()}
    return {
        "f1": {key},
        "untrained": {other for other, each in described.items() if each == untrained},
        "majority": {other for other, (kind, _) in described.items() if kind == "majority"},
    }


def _mean_f1(cells: Sequence[Mapping[str, Any]]) -> float | None:
    f1 = [cell["scores"]["mean"]["f1_weighted"] for cell in cells]
    return fmean(f1) if f1 else None


def _features(bundle: Bundle) -> Iterable[str]:
    if bundle.scores is None:
        return
    rows = [
        [
            row["game"],
            row["protocol"],
            f"`{row['encoder']}`",
            " ".join(map(str, row["seeds"])),
            *("-" if row[n] is None else f"{row[n]:.3f}" for n in ("f1", "untrained", "majority")),
        ]
        for row in probe_rows(bundle.scores, bundle.names)
    ]
    settings = bundle.scores["settings"]
    yield (
        "## What its features know\n\nMean weighted F1 of probes (linear, but for `knn`) from "
        "frozen features to the variables in the emulator's RAM (Anand et al. 2019), beside "
        "untrained weights of the same architecture and the most frequent value. "
        f"{settings.get('n_frames')} frames per game, labels `{settings.get('labels')}`.\n\n"
    ) + markdown_table(
        ["game", "protocol", "encoder", "seeds", "F1", "untrained", "majority"], rows
    )


def _training(bundle: Bundle) -> Iterable[str]:
    if bundle.pretraining:
        yield _settings_table("Training of the encoder", dict(bundle.pretraining))
    if bundle.run:
        run = bundle.run
        about = {
            "algorithm": run.get("algorithm"),
            "seed": run.get("seed"),
            "steps": run.get("n_timesteps"),
            **(run.get("settings") or {}),
            "git_commit": run.get("git_commit"),
            "versions": run.get("versions"),
        }
        yield _settings_table("Training of the agent", about)


def _settings_table(heading: str, about: dict[str, Any]) -> str:
    # A provenance says what its author wants, under any name.
    versions = about.pop("versions") if isinstance(about.get("versions"), dict) else {}
    commit = about.pop("git_commit", None)
    values = {**about, "commit of rl_infonce": commit, **versions}
    rows = [[name, f"`{json.dumps(each)}`"] for name, each in values.items() if each is not None]
    return f"## {heading}\n\n" + markdown_table(["setting", "value"], rows)


def _metadata(bundle: Bundle) -> str:
    hub = library()
    results = []
    if bundle.evaluation is not None:
        found = bundle.evaluation
        scores = [episode["return"] for episode in found["episodes"]]
        # The hub's convention for Stable-Baselines3: mean and standard deviation in one string.
        form = return_form(scores, ".2f")
        spread = f" +/- {pstdev(scores):{form}}" if len(scores) > 1 else ""
        value = f"{found['mean_return']:{form}}{spread}"
        results.append(_result(hub.EvalResult, found["game"], "mean_reward", value))
    for row in probe_rows(bundle.scores, bundle.names) if bundle.scores is not None else []:
        name = f"probe F1 ({row['protocol']}, {row['encoder']})"
        results.append(_result(hub.EvalResult, row["game"], "f1", round(row["f1"], 4), name))
    atari = ["atari"] if bundle.game in games() else []
    data = hub.ModelCardData(
        library_name="stable-baselines3",
        tags=[*([game_id(bundle.game)] if bundle.game else []), *_TAGS, *_OWN_TAGS, *atari],
        model_name=_algorithm(bundle) if AGENT in bundle.files else "encoder",
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _result(kind: Any, game: str, metric: str, value: Any, name: str | None = None) -> Any:
    return kind(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=game_id(game),
        dataset_name=game_id(game),
        metric_type=metric,
        metric_name=name or metric,
        metric_value=value,
    )
