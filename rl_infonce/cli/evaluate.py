"""`rl-infonce evaluate`: what does a saved agent score?"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_infonce.cli.arguments import add_progress, game_argument, shown, shows_progress

if TYPE_CHECKING:
    from rl_infonce.agents.evaluation import Episode

_N_ENVS = 8
_MAX_FRAMES = 108_000
_FRAMES_PER_STEP, _FRAMES_PER_SECOND = 4, 60
_MOST_SECONDS = 200  # of video: Pillow keeps a GIF in memory until it is whole


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `evaluate` and its flags."""
    parser = subparsers.add_parser(
        "evaluate",
        help="play whole games with a saved agent and say what they returned",
        description="Play whole Atari games with a saved agent and print every score with mean and "
        "standard error. Scores are the game's own points over all lives, whatever was clipped in "
        "training. No code in the model file is executed.",
    )
    add = parser.add_argument
    add(
        "--model",
        type=Path,
        required=True,
        metavar="PATH",
        help="a PPO, A2C or DQN agent saved by SB3 (.zip), or the directory of a run",
    )
    add("--best", action="store_true", help="of a run: the model whose episodes returned most")
    add("--game", "--env", type=game_argument, help="any spelling (that of the run)")
    add("--n-episodes", type=int, default=10, metavar="N", help=shown("whole games"))
    add("--n-envs", type=int, default=_N_ENVS, metavar="N", help=shown("games played at once"))
    add("--seed", type=int, default=0, metavar="N", help=shown("of games and actions"))
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--stochastic",
        dest="deterministic",
        action="store_false",
        default=False,
        help="sample PPO's and A2C's actions, and let DQN explore as it did when it was saved (the "
        "default, as in RL Zoo for Atari)",
    )
    how.add_argument(
        "--deterministic",
        action="store_true",
        help="take the best action: such an agent may wait forever, e.g. for a ball it never fires",
    )
    add("--epsilon", type=float, metavar="X", help="probability of a uniform action instead")
    add(
        "--max-frames",
        type=int,
        default=_MAX_FRAMES,
        metavar="N",
        help="emulator frames, four to a step, after which a game is cut (%(default)s: 30 minutes)",
    )
    add(
        "--video",
        type=Path,
        metavar="FILE",
        help=f"of one game, {_MOST_SECONDS} seconds at most: .gif, or .mp4 if imageio-ffmpeg "
        "is installed",
    )
    add("-o", "--output", type=Path, metavar="FILE", help="scores, settings and versions as JSON")
    add_progress(add)
    add(
        "--trust-pickle",
        action="store_true",
        help="let a model file that cannot be read safely execute the code it contains",
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Play, print the scores, and return the exit code.

    0: done. 1: the model cannot be read or does not fit the game, or a file cannot be written. 130:
    stopped by Ctrl-C. Wrong usage leaves with 2.

    Args:
        arguments: What the parser returned.
    """
    try:
        path, game = _checked(arguments)
    except (ValueError, TypeError, OSError, ImportError) as error:
        arguments.usage_error(str(error))
    try:
        return _evaluate(arguments, path, game)
    except (ValueError, TypeError, OSError) as error:
        print(f"rl-infonce evaluate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing was written.", file=sys.stderr)
        return 130


def _checked(arguments: argparse.Namespace) -> tuple[Path, str]:
    """Return the model's file and its game, after checking all flags."""
    from rl_infonce.agents.saved_agent import find_model, game_of
    from rl_infonce.checks import check_number
    from rl_infonce.report.video import check_video_path

    check_number("--n-episodes", arguments.n_episodes, at_least=1)
    check_number("--n-envs", arguments.n_envs, at_least=1)
    check_number("--seed", arguments.seed, at_least=0, at_most=2**31 - 1)
    check_number("--max-frames", arguments.max_frames, at_least=1)
    if arguments.epsilon is not None:
        check_number("--epsilon", arguments.epsilon, at_least=0, at_most=1)
    if arguments.video is not None:
        check_video_path(arguments.video)
        _try_to_write_beside(arguments.video)
    if arguments.output is not None:
        _check_output(arguments.output)
    path = find_model(arguments.model, best=arguments.best)
    game = arguments.game or game_of(arguments.model)
    if game is None:
        raise ValueError(f"Expected `--game`: {arguments.model} is no run that names its game.")
    return path, game


def _check_output(path: Path) -> None:
    """Raise if the games would be played for nothing, or the scores replace something else."""
    from rl_infonce.runs.evaluation_file import read_evaluation

    if path.is_dir():
        raise IsADirectoryError(
            f"Expected `--output` to be a file, got the folder {path}. Name a file in it."
        )
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected a folder for {path}, got none there.")
    if path.exists():
        try:
            read_evaluation(path)
        except ValueError as error:
            raise ValueError(f"{error} `--output` does not replace it; name another.") from error
    _try_to_write_beside(path)


def _try_to_write_beside(path: Path) -> None:
    """Raise OSError if no file can be made in the folder of a path."""
    with tempfile.TemporaryFile(dir=path.absolute().parent):
        pass


def _evaluate(arguments: argparse.Namespace, path: Path, game: str) -> int:
    import numpy as np
    from tqdm import tqdm

    from rl_infonce.agents.epsilon_greedy import epsilon_greedy_policy
    from rl_infonce.agents.evaluation import play_episodes
    from rl_infonce.agents.saved_agent import open_policy, saved_exploration_rate
    from rl_infonce.atari import make_atari_vec_env

    digest = hashlib.sha256(path.read_bytes()).hexdigest()  # training may replace it meanwhile
    model = open_policy(path, trust_pickle=arguments.trust_pickle)
    epsilon = arguments.epsilon
    if epsilon is None:
        epsilon = 0.0 if arguments.deterministic else saved_exploration_rate(path)
    policy = epsilon_greedy_policy(
        model,
        epsilon,
        np.random.default_rng(arguments.seed),
        deterministic=arguments.deterministic,
    )
    env = make_atari_vec_env(
        game,
        min(arguments.n_envs, arguments.n_episodes),
        seed=arguments.seed,
        terminal_on_life_loss=False,
        clip_reward=False,
        max_frames_per_episode=arguments.max_frames,
    )
    shows = shows_progress(arguments)
    start = time.perf_counter()
    print(f"Playing {arguments.n_episodes} games of {game} with {path}", flush=True)
    with tqdm(total=arguments.n_episodes, unit="game", disable=not shows) as bar:
        episodes = play_episodes(
            policy, env, arguments.n_episodes, show=lambda _episode: bar.update()
        )
    seconds = time.perf_counter() - start
    state = env.get_state()
    env.close()
    settings = state["settings"] | {
        "n_episodes": arguments.n_episodes,
        "seed": arguments.seed,
        "deterministic": arguments.deterministic,
        "epsilon": epsilon,
    }
    _print_scores(episodes, arguments, seconds)
    if arguments.output is not None:
        saved = {"path": str(path), "sha256": digest}
        _write(arguments.output, game, saved, episodes, settings, seconds)
    if arguments.video is not None:
        _write_video(arguments.video, state)
    return 0


def _print_scores(episodes: list[Episode], arguments: argparse.Namespace, seconds: float) -> None:
    from rl_infonce.runs.evaluation_file import mean_and_error

    print("game      return    steps")
    for number, episode in enumerate(episodes, 1):
        cut = "  (cut)" if episode.is_cut else ""
        print(f"{number:4d} {episode.score:11.1f} {episode.length:8d}{cut}")
    mean, error = mean_and_error([episode.score for episode in episodes])
    spread = "" if error is None else f" +- {error:.2f} (standard error)"
    n_steps = sum(episode.length for episode in episodes)
    print(f"Mean return {mean:.2f}{spread}, {n_steps} steps in {seconds:.0f} s")
    n_cut = sum(episode.is_cut for episode in episodes)
    if n_cut:
        advice = " The agent may wait for something: try --stochastic."
        print(
            f"{n_cut} of {len(episodes)} games were cut after {arguments.max_frames} frames."
            + (advice if arguments.deterministic else "")
        )


def _write(
    output: Path,
    game: str,
    model: dict[str, str],
    episodes: list[Episode],
    settings: dict[str, Any],
    seconds: float,
) -> None:
    from rl_infonce.files.durable import replace_json
    from rl_infonce.runs.evaluation_file import evaluation_record
    from rl_infonce.runs.run_directory import now, software

    record = evaluation_record(
        game,
        [{"return": e.score, "length": e.length, "is_cut": e.is_cut} for e in episodes],
        model=model,
        settings=settings,
        command=shlex.join(sys.argv),
        end_time=now(),
        wall_seconds=round(seconds, 3),
        **software(),
    )
    replace_json(output, record)
    print(f"Scores: {output}")


def _write_video(path: Path, state: dict[str, Any]) -> None:
    from rl_infonce.atari.screens import replay_screens
    from rl_infonce.report.video import write_video

    rate = _FRAMES_PER_SECOND / _FRAMES_PER_STEP
    most = round(_MOST_SECONDS * rate)
    n = write_video(path, replay_screens(state), frames_per_second=rate, most=most)
    print(f"Video:  {path} ({n / rate:.0f} s{' of a longer game' if n == most else ''})")
