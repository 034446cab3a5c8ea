"""Engines run the same jobs, name what failed, and stop when asked to."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loky import cpu_count

from rl_infonce import __version__
from rl_infonce.atari import collect, random_play
from rl_infonce.runs.signals import INTERRUPTED
from rl_infonce.sweeps import run_cell
from rl_infonce.sweeps.local import run_locally
from rl_infonce.sweeps.on_ray import check_address, run_on_ray
from rl_infonce.sweeps.on_slurm import _Task, check_parameters, run_on_slurm
from rl_infonce.sweeps.run_cell import Job, run_job, thread_limits
from tests.runs.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

VERSION, UNKNOWN = ("--version",), ("no-such-command",)


def job(folder: Path, name: str, *commands: tuple[str, ...]) -> Job:
    return Job(name, commands, folder / name / "output.log")


def python_runs(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let Python run this code in place of a command, and nothing for the word "short"."""
    popen = subprocess.Popen

    def start(command: Sequence[str], **settings: Any) -> Any:
        own = "pass" if command[-1] == "short" else code
        return popen([sys.executable, "-c", own, command[-1]], **settings)

    monkeypatch.setattr(subprocess, "Popen", start)


def jobs_of(folder: Path) -> list[Job]:
    return [
        job(folder, "good", VERSION, VERSION),
        job(folder, "bad", UNKNOWN, VERSION),
        job(folder, "other", VERSION),
    ]


def assert_all_done_but_bad(found: Iterator[tuple[str, int]], folder: Path) -> None:
    assert dict(found) == {"good": 0, "bad": 2, "other": 0}
    assert (folder / "good" / "output.log").read_text().count("rl_infonce ") == 2
    log = (folder / "bad" / "output.log").read_text()
    assert "no-such-command" in log
    assert "rl_infonce 0" not in log, "nothing runs after what failed"


def test_local_processes(tmp_path: Path) -> None:
    assert_all_done_but_bad(run_locally(jobs_of(tmp_path), n_jobs=2), tmp_path)


def ray_is_here() -> Any:
    return pytest.importorskip("ray")


@pytest.mark.thorough
@pytest.mark.slow
def test_ray_that_starts_for_it(tmp_path: Path) -> None:
    ray = ray_is_here()
    assert_all_done_but_bad(run_on_ray(jobs_of(tmp_path)), tmp_path)
    assert not ray.is_initialized()


@pytest.mark.thorough
@pytest.mark.slow
def test_jobs_share_a_gpu_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = ray_is_here()
    (tmp_path / "running").mkdir()

    def run(job: Job, environment: dict[str, str]) -> int:
        (tmp_path / "running" / job.name).touch()
        time.sleep(1)
        beside = sorted(path.name for path in (tmp_path / "running").iterdir())
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        (tmp_path / f"{job.name}.txt").write_text(f"{gpu} {len(beside)} {environment}")
        time.sleep(1)  # those that began together have counted
        (tmp_path / "running" / job.name).unlink()
        return 0

    monkeypatch.setattr("rl_infonce.sweeps.on_ray.run_job", run)
    ray.init("local", num_cpus=8, num_gpus=1, include_dashboard=False, log_to_driver=False)
    names = ["a", "b", "c", "d"]
    jobs = [job(tmp_path, name) for name in names]
    assert dict(run_on_ray(jobs, n_cpus=2, n_gpus=0.5)) == dict.fromkeys(names, 0)
    seen = [(tmp_path / f"{name}.txt").read_text() for name in names]
    assert {text.split(" ", 1)[0] for text in seen} == {"0"}
    assert max(int(text.split()[1]) for text in seen) == 2, "four have processors, two a GPU"
    assert {text.split(" ", 2)[2] for text in seen} == {str(thread_limits(2))}


@pytest.mark.thorough
def test_a_job_that_is_lost_too_often_fails_alone_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is_here()
    starts = tmp_path / "starts"

    def run(job: Job, _environment: dict[str, str]) -> int:
        if job.name == "lost":
            with starts.open("a") as file:
                file.write("x")
            os._exit(1)
        return 0

    monkeypatch.setattr("rl_infonce.sweeps.on_ray.run_job", run)
    jobs = [job(tmp_path, "lost"), job(tmp_path, "good")]
    assert dict(run_on_ray(jobs, n_retries=1)) == {"lost": 1, "good": 0}
    assert starts.read_text() == "xx"


def test_slurm_through_submitits_local_executor(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    parameters = {"timeout_min": 5}
    settings: dict[str, Any] = {"folder": tmp_path / "slurm", "cluster": "local"}
    settings["parameters"] = parameters
    assert_all_done_but_bad(run_on_slurm(jobs_of(tmp_path), **settings), tmp_path)
    for wrong in ({"no_such": 1}, {"timeout_min": 1.5}, {"timeout_min": "240"}):
        with pytest.raises(ValueError, match=f"as submitit takes them, got .*{next(iter(wrong))}"):
            next(run_on_slurm(jobs_of(tmp_path), **{**settings, "parameters": wrong}))


@pytest.mark.parametrize("cluster", [None, "slurm"])
def test_without_slurm_nothing_is_started_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str | None
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    settings: dict[str, Any] = {"parameters": {"timeout_min": 5}, "cluster": cluster}
    with pytest.raises(OSError, match=r"got no srun in PATH\. .*--engine local"):
        next(run_on_slurm(jobs_of(tmp_path), folder=tmp_path, **settings))


@pytest.mark.parametrize(("given", "expected"), [({}, 1000), ({"slurm_max_num_timeout": 7}, 7)])
def test_a_cell_out_of_time_is_submitted_again_on_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], expected: int
) -> None:
    submitit = pytest.importorskip("submitit")
    made: list[dict[str, Any]] = []

    class FakeExecutor:
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

        def update_parameters(self, **parameters: Any) -> None:
            made.append(parameters)

        def submit_array(self, _tasks: list[_Task]) -> list[Any]:
            return []

    monkeypatch.setattr(submitit, "AutoExecutor", FakeExecutor)
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/srun")
    parameters = {"timeout_min": 240, **given}
    assert not list(run_on_slurm([], folder=tmp_path, parameters=parameters))
    settings, updated = made
    assert settings["slurm_max_num_timeout"] == expected
    assert updated == {"cpus_per_task": 1, "timeout_min": 240}


def test_a_job_on_slurm_needs_its_time() -> None:
    for cluster in (None, "slurm"):
        with pytest.raises(
            ValueError, match=r"got \['slurm_partition'\].* --slurm timeout_min:240"
        ):
            check_parameters({"slurm_partition": "x"}, cluster)
        for name in ("timeout_min", "slurm_timeout_min", "slurm_time"):
            check_parameters({name: 60}, cluster)
    for cluster in ("local", "debug"):
        check_parameters({}, cluster)
    with pytest.raises(ValueError, match=r"`slurm_max_num_timeout` to be a .* >= 0, got -1"):
        check_parameters({"timeout_min": 60, "slurm_max_num_timeout": -1}, None)


def test_a_training_saves_before_slurm_ends_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    begun, end = tmp_path / "begun", "; Path(sys.argv[1] + '.end').touch()"
    python_runs(monkeypatch, ONE_SIGNAL.replace("time.sleep(0.3)", f"time.sleep(0.3){end}"))
    task = _Task(job(tmp_path, "a", (str(begun),)), {})

    def as_submitit_does(*_given: Any) -> None:
        again = task.checkpoint().function
        assert (tmp_path / "begun.end").exists()
        assert again.job == task.job
        raise SystemExit(1)

    def announce() -> None:
        wait_until(begun.exists)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, as_submitit_does)
    threading.Thread(target=announce).start()
    try:
        with pytest.raises(SystemExit):
            task()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert task._process is not None
    assert task._process.wait() == 75
    assert (tmp_path / "begun.saved").read_text() == "x"


def test_jobs_that_nobody_listens_to_are_cancelled_on_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit")
    cancelled: list[str] = []

    class FakeJob:
        state = "COMPLETED"

        def __init__(self, task: _Task) -> None:
            self.name = task.job.name

        def done(self) -> bool:
            return self.name == "good"

        def exception(self) -> None:
            return None

        def result(self) -> int:
            return 0

        def cancel(self) -> None:
            cancelled.append(self.name)

    monkeypatch.setattr(
        submitit.AutoExecutor, "submit_array", lambda _, tasks: list(map(FakeJob, tasks))
    )
    engine = run_on_slurm(jobs_of(tmp_path), folder=tmp_path / "slurm", cluster="local")
    monkeypatch.setattr("rl_infonce.runs.signals._OUTPUTS", ())  # pytest goes on printing
    assert next(engine) == ("good", 0)
    os.kill(os.getpid(), signal.SIGHUP)
    assert not cancelled, "they need no terminal"
    engine.close()
    assert cancelled == ["bad", "other"]


def test_a_job_runs_the_code_of_its_engine_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rl_infonce").mkdir()
    for name in ("rl_infonce/__init__.py", "rl_infonce/__main__.py", "argparse.py", "torch.py"):
        (tmp_path / name).write_text("print('somebody else')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert run_job(job(tmp_path, "a", VERSION), {}) == 0
    assert (tmp_path / "a" / "output.log").read_text() == f"rl_infonce {__version__}\n"


def test_a_job_prints_through_no_link(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    theirs, asked = tmp_path / "theirs", job(tmp_path, "a", VERSION)
    theirs.write_text("as it was")
    asked.log.parent.mkdir()
    asked.log.symlink_to(theirs)
    assert run_job(asked, {}) == 1
    assert "a cannot be run: [Errno " in capfd.readouterr().err
    assert theirs.read_text() == "as it was"


def test_a_job_has_the_environment_of_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MINE")
    code = f"import os; print([os.environ.get(name) for name in {names}])"
    monkeypatch.setattr("rl_infonce.sweeps.run_cell._START", code)
    for name in names:
        monkeypatch.setenv(name, "8")
    environment = {**thread_limits(3), "CUDA_VISIBLE_DEVICES": "1"}
    assert run_job(job(tmp_path, "a", VERSION), environment) == 0
    assert (tmp_path / "a" / "output.log").read_text() == "['3', '3', '1', '8']\n"


@pytest.mark.atari
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_cell_collects_frames_on_its_own_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    for name, value in thread_limits(n_threads).items():
        monkeypatch.setenv(name, value)
    asked: list[int] = []
    play = random_play._play_in_processes

    def noted(collection: Any, n_processes: int, show: Any) -> None:
        asked.append(n_processes)
        play(collection, n_processes, show)

    monkeypatch.setattr(random_play, "_MIN_ROWS_PER_PROCESS", 1)
    monkeypatch.setattr(random_play, "_play_in_processes", noted)
    collect("pong", 4, folder=tmp_path, n_shards=4)
    assert asked == [n_threads] * (n_threads > 1 and os.cpu_count() != 1)


def test_a_job_that_cannot_be_started_fails_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").touch()
    jobs = [job(tmp_path, name, VERSION) for name in ("good", "bad", "other")]
    assert dict(run_locally(jobs, n_jobs=1)) == {"good": 0, "bad": 1, "other": 0}
    assert "bad cannot be run: [Errno 17] File exists" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        (None, {"n_jobs": 4, "n_gpus": 2, "n_threads": 3}, {("0", "3"), ("1", "3")}),
        (None, {"n_jobs": 1}, {(None, "1")}),
        ("2,5", {"n_jobs": 3, "n_gpus": 2}, {("2", "1"), ("5", "1")}),
        ("GPU-a, GPU-b,-1", {"n_jobs": 3, "n_gpus": 2}, {("GPU-a", "1"), ("GPU-b", "1")}),
        ("2,5", {"n_jobs": 3, "n_gpus": 0}, {(None, "1")}),
    ],
)
def test_gpus_are_dealt_in_turn_and_threads_to_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    settings: dict[str, int],
    expected: set[tuple[str | None, str]],
) -> None:
    seen: list[tuple[str | None, str]] = []

    def run(_job: Job, environment: dict[str, str], _started: Any) -> int:
        time.sleep(0.05)
        seen.append((environment.get("CUDA_VISIBLE_DEVICES"), environment["OMP_NUM_THREADS"]))
        return 0

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setattr("rl_infonce.sweeps.local.run_job", run)
    assert len(list(run_locally([job(tmp_path, str(i)) for i in range(8)], **settings))) == 8
    assert set(seen) == expected


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_dead_address_is_named_at_once(address: str) -> None:
    ray_is_here()  # which takes its own time to import
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=f"cluster at {address}, got no answer within 5 s"):
        check_address(address)
    assert time.monotonic() - start < 6
    for fine in (None, "auto", "local"):
        check_address(fine)
    with pytest.raises(ValueError, match="host:port, got 'nowhere'"):
        check_address("nowhere")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "got no answer within 1 s"),
        (b"", "something else that listens"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "something else that listens"),
    ],
)
def test_something_else_that_listens_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, message: str
) -> None:
    monkeypatch.setattr("rl_infonce.sweeps.on_ray._SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                if answer is not None:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(64):
                    pass

        listener = threading.Thread(target=serve)
        listener.start()
        with pytest.raises(ConnectionError, match=message):
            check_address(f"127.0.0.1:{server.getsockname()[1]}")
        listener.join(timeout=5)
        assert not listener.is_alive()


@pytest.mark.parametrize("module", ["ray", "submitit"])
def test_a_missing_extra_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    engine = run_on_ray([]) if module == "ray" else run_on_slurm([], folder=tmp_path)
    extra = {"ray": "ray", "submitit": "slurm"}[module]
    with pytest.raises(ModuleNotFoundError, match=rf"rl-infonce\[{extra}\]"):
        next(engine)


SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(75))
open(sys.argv[1], "w").close()
time.sleep(60)
"""


@pytest.fixture
def sleepers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs sleep until they are interrupted, as a training does that saves and exits 75."""
    python_runs(monkeypatch, SLEEPER)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Listen to Ctrl-C, which whoever starts pytest in the background has it ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sleepers")
def test_a_signal_stops_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    started = [tmp_path / str(i) for i in range(4)]
    jobs = [job(tmp_path, path.name + "x", (str(path),)) for path in started]

    def interrupt() -> None:
        wait_until(lambda: started[0].exists() and started[1].exists())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    handler = signal.getsignal(signal.SIGTERM)
    found = dict(run_locally(jobs, n_jobs=2))
    assert found == dict.fromkeys(("0x", "1x", "2x", "3x"), INTERRUPTED)
    assert [path.exists() for path in started] == [True, True, False, False]
    assert signal.getsignal(signal.SIGTERM) == handler


ONE_SIGNAL = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: Path(sys.argv[1] + ".saved").open("a").write("x"))
Path(sys.argv[1]).touch()
while not Path(sys.argv[1] + ".saved").exists():
    time.sleep(0.02)
time.sleep(0.3)
sys.exit(75)
"""


@pytest.mark.parametrize("has_signal", [False, True])
def test_trainings_save_when_nobody_listens_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_signal: bool
) -> None:
    python_runs(monkeypatch, ONE_SIGNAL)
    begun = tmp_path / "begun"
    jobs = [job(tmp_path, "b", (str(begun),)), job(tmp_path, "a", ("short",))]
    engine = run_locally(jobs, n_jobs=2)
    assert next(engine) == ("a", 0)
    wait_until(begun.exists)
    if has_signal:
        os.kill(os.getpid(), signal.SIGTERM)
    engine.close()
    assert (tmp_path / "begun.saved").read_text() == "x", "asked once: the second signal kills"


def test_an_error_that_nobody_foresaw_lets_the_others_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: Any) -> int:
        raise RuntimeError("can't start new thread")

    asked: list[str] = []
    monkeypatch.setattr("rl_infonce.sweeps.local.run_job", fail)
    monkeypatch.setattr("rl_infonce.sweeps.local._Pool.stop", lambda *_: asked.append("stop"))
    monkeypatch.setattr("rl_infonce.sweeps.local._Pool.kill", lambda *_: asked.append("kill"))
    with pytest.raises(RuntimeError, match="new thread"):
        list(run_locally([job(tmp_path, "a", VERSION)], n_jobs=1))
    assert asked == ["stop"]


class FakeTask:
    def remote(self, *_given: Any) -> object:
        return object()


class FakeRay:
    """Enough of Ray to see what is done before it ends."""

    class exceptions:
        TaskCancelledError = RayError = RuntimeError

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.settings: dict[str, Any] = {}

    def init(self, **settings: Any) -> None:
        self.calls.append("init")
        self.settings = settings

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "Resources": {"CPU": self.settings.get("num_cpus", 2)}},
            {"Alive": False, "Resources": {"CPU": 64, "GPU": 8}},
        ]

    def remote(self, **_settings: Any) -> Any:
        return lambda _function: FakeTask()

    def wait(self, waiting: list[Any], **settings: Any) -> tuple[list[Any], list[Any]]:
        if "num_returns" in settings:
            self.calls.append(f"wait for {settings['num_returns']}")
        return waiting[:1], waiting[1:]

    def get(self, _reference: Any) -> int:
        return 0

    def cancel(self, _reference: Any) -> None:
        self.calls.append("cancel")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_ray_waits_for_trainings_that_nobody_listens_to(tmp_path: Path, fake_ray: FakeRay) -> None:
    engine = run_on_ray(jobs_of(tmp_path))
    assert next(engine) == ("good", 0)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
    engine.close()
    calls = ["init", "cancel", "cancel", "wait for 2", "shutdown"]
    assert fake_ray.calls == calls, "asked once each"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"n_jobs": 3, "n_cpus": 2}, 6),
        ({"n_jobs": 3, "n_cpus": 2, "address": "local"}, 6),
        ({"n_cpus": 2}, None),
        ({"n_jobs": 3, "address": "auto"}, None),
    ],
)
def test_a_ray_that_starts_here_has_room_for_the_jobs_at_once(
    fake_ray: FakeRay, given: dict[str, Any], expected: int | None
) -> None:
    assert not list(run_on_ray([], **given))
    assert fake_ray.settings.get("num_cpus") == expected


def test_jobs_that_no_node_has_room_for_are_named(fake_ray: FakeRay) -> None:
    expected = "1 processors and 1 GPUs of a job .*, got nodes of 2 and 0"
    with pytest.raises(ValueError, match=expected):
        list(run_on_ray([], n_gpus=1))
    assert fake_ray.calls[-1] == "shutdown"
    with pytest.warns(UserWarning, match=f"{expected}. Waiting for one"):
        assert not list(run_on_ray([], n_gpus=1, address="auto")), "a cluster may grow"


def test_a_ray_of_another_version_is_no_traceback(
    fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_settings: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with Ray 1")

    monkeypatch.setattr(fake_ray, "init", refuse)
    with pytest.raises(ConnectionError, match="Ray at auto, got: Version mismatch"):
        list(run_on_ray([], address="auto"))


def test_what_slurm_refuses_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit")

    def refuse(*_arguments: Any) -> None:
        raise submitit.core.utils.FailedJobError("sbatch: error: invalid partition specified: gqu")

    monkeypatch.setattr(submitit.AutoExecutor, "submit_array", refuse)
    with pytest.raises(OSError, match=r"Slurm to take the jobs, got: .*invalid partition"):
        list(run_on_slurm(jobs_of(tmp_path), folder=tmp_path, cluster="local"))


@pytest.mark.thorough
@pytest.mark.slow
def test_as_many_jobs_at_once_as_asked_for_on_a_ray_that_starts_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_is_here()

    def run(job: Job, _environment: dict[str, str]) -> int:
        deadline = time.monotonic() + 60
        (tmp_path / f"{job.name}.begun").touch()
        while len(list(tmp_path.glob("*.begun"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        return len(list(tmp_path.glob("*.begun")))

    monkeypatch.setattr("rl_infonce.sweeps.on_ray.run_job", run)
    jobs = [job(tmp_path, name) for name in ("a", "b", "c")]
    n_cpus = cpu_count()  # so that one fits without `n_jobs`
    assert dict(run_on_ray(jobs, n_jobs=3, n_cpus=n_cpus)) == dict.fromkeys("abc", 3)


@pytest.mark.parametrize("code", ["import sys; sys.exit(130)", "raise KeyboardInterrupt"])
def test_a_probe_that_ctrl_c_ended_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    python_runs(monkeypatch, code)
    assert run_job(job(tmp_path, "a", ("x",)), {}) == INTERRUPTED


@pytest.mark.usefixtures("sleepers", "ctrl_c")
def test_an_interrupted_job_waits_for_its_training(tmp_path: Path) -> None:
    def interrupt(_process: Any) -> None:
        def soon() -> None:
            wait_until((tmp_path / "begun").exists)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=soon).start()

    assert run_job(job(tmp_path, "a", (str(tmp_path / "begun"),)), {}, interrupt) == INTERRUPTED


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_nothing_trains_on_when_its_engine_dies(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from rl_infonce.sweeps import run_cell\n"
        "popen = subprocess.Popen\n"
        "def sleep(command, **settings):\n"
        "    process = popen([sys.executable, '-c', 'import time; time.sleep(60)'], **settings)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "subprocess.Popen = sleep\n"
        f"run_cell.run_job(run_cell.Job('a', (('x',),), Path({str(tmp_path)!r}) / 'log'), {{}})\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        child = int(engine.stdout.readline())
        engine.kill()
    wait_until(lambda: not _is_alive(child), seconds=10)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_nothing_starts_whose_engine_is_dead_already() -> None:
    for parent, code in ((os.getpid(), 0), (1, -signal.SIGKILL)):
        orphaned = partial(run_cell._die_with_parent, parent)
        with subprocess.Popen(["true"], preexec_fn=orphaned) as process:
            assert process.wait() == code


def _is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
