"""A standalone Spark on loopback: one master, two workers, from the jars of the pyspark package.

Owns: the processes of the cluster and the search for those that Spark starts below them.
Invariant: nothing outlives the process that made the cluster, not even when that one is killed: the daemons ask
the kernel for SIGKILL at their parent's death, executors die with their worker, Python workers with their executor.
Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For processes that live for seconds: quick to start on a machine with few cores."""
_OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch")
)
_START_SECONDS_MAX = 90.0
_PR_SET_PDEATHSIG = 1


def until(holds: Callable[[], bool], seconds_max: float, what: str) -> None:
    """Poll a condition; TimeoutError naming ``what`` when it does not come true in time."""
    deadline = time.monotonic() + seconds_max
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds_max:.0f} seconds")
        time.sleep(0.02)


def python_environment() -> dict[str, str]:
    """Variables with which drivers and workers are this interpreter and find the project."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": "",  # these JVMs have archives of their own
    }


def spawn(command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own that dies with this one; both its streams go to ``log``."""
    with open(log, "ab") as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, safe beside threads
        )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and its group; twice is allowed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """A context manager; ``master`` is the URL to give to Spark. ``environment``: variables of its processes."""

    def __init__(self, folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self.master = ""
        self._environment = python_environment() if environment is None else environment
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything; twice is allowed."""
        below = [pid for process in self._processes for pid in descendants(process.pid)]
        for process in self._processes:
            kill_group(process)
        for pid in below:
            kill(pid)
        self._processes.clear()
        atexit.unregister(self.close)

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        return [
            pid
            for process in self._processes[1:]
            for pid in descendants(process.pid)
            if "CoarseGrainedExecutorBackend" in command_line(pid)
        ]

    def python_workers(self) -> list[int]:
        """Process ids of the Python workers: the children of the executors' daemons, not the daemons themselves."""
        daemons = [pid for executor in self.executors() for pid in descendants(executor) if _is_daemon(pid)]
        return [pid for pid in daemons if _is_daemon(_parent(pid))]

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "master.log"
        self._daemon("master.Master", ["--port", "0"], log)
        found: list[str] = []

        def listening() -> bool:
            found[:] = re.findall(
                r"Starting Spark master at (spark://\S+)", log.read_text("utf-8", "replace")
            )
            return bool(found)

        until(listening, _START_SECONDS_MAX, f"the master has not started, see {log}")
        self.master = found[0]
        for number in range(self._workers):
            work = self._folder / f"work-{number}"
            arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), self.master]
            self._daemon("worker.Worker", arguments, self._folder / f"worker-{number}.log")
        until(
            lambda: log.read_text("utf-8", "replace").count("Registering worker") >= self._workers,
            _START_SECONDS_MAX,
            f"the workers have not come to the master, see {log}",
        )

    def _daemon(self, name: str, arguments: list[str], log: Path) -> None:
        import pyspark

        from asyncstate.spark.java import check_java

        home = Path(pyspark.__file__).parent
        command = [
            *(check_java(), "-cp", str(home / "jars" / "*"), "-Xmx256m", *JAVA_OPTIONS, *_OPENED),
            f"org.apache.spark.deploy.{name}",
            *("--host", LOOPBACK, "--webui-port", "0"),
            *arguments,
        ]
        environment = {
            **self._environment,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_SCALA_VERSION": _scala_version(home),
        }
        self._processes.append(spawn(command, log, environment))


def _scala_version(home: Path) -> str:
    """Spark's scripts find it out too; without it a worker cannot build an executor's command."""
    jar = next((home / "jars").glob("spark-core_*.jar"))
    return jar.name.removeprefix("spark-core_").split("-")[0]


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone is allowed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def command_line(pid: int) -> str:
    """The process's command, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def executors_of(application: str) -> list[int]:
    """Process ids of the executors that run for the application of this id, whoever started them."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    commands = {pid: command_line(pid) for pid in pids}
    return [
        pid
        for pid, command in commands.items()
        if "CoarseGrainedExecutorBackend" in command and application in command
    ]


def _is_daemon(pid: int) -> bool:
    return "pyspark.daemon" in command_line(pid)


def _parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    return int(status.rpartition(")")[2].split()[1])
