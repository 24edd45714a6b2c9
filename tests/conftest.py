"""What every test may use: a Spark session, an S3, the two modes, hypothesis profiles.

Owns: shared fixtures and nothing else; a fixture that one area needs stands in that area's own conftest.
Invariant: importing this file starts nothing and imports neither Spark nor RocksDB.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.s3_server import S3Server
    from tests.servers.kafka import KafkaBroker

ROOT = Path(__file__).resolve().parents[1]

# No deadline: two cores shared with Spark make single examples slow at random. print_blob says how to replay.
settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("brief", settings.get_profile("quick"), max_examples=10)  # of `make test`
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2_000)
# CI gives the same verdict on the same tree; what chance may find is for the others to look for.
settings.register_profile("ci", settings.get_profile("quick"), max_examples=12, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "quick"))

SCRATCH = "ASYNCSTATE_TEST_SCRATCH"
"""Names the folder for everything that tests write; by default a new one in memory, where there is such a place."""
REMOTE = "ASYNCSTATE_TEST_REMOTE"
"""If it is set, tests with Spark get a session of Spark Connect, to a server on the loopback."""
_SERVERS = {"postgres", "mysql", "kafka"}
"""Parameters of tests that start one; `make test` needs none of them."""
_IN_MEMORY = Path("/dev/shm")
_IN_MEMORY_BYTES_MIN = 4 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let tests, and all that they start, write into memory: on a disk they would mostly wait for its fsync."""
    if _spark_version() < (4, 2):  # which leaves the sockets of `collect` to the garbage collector
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the controller's environment says where
    os.environ.setdefault(class_archive.VARIABLE, class_archive.java_options())
    given = os.environ.get(SCRATCH)
    place = given or in_memory()
    if place is None:
        return
    scratch = tempfile.mkdtemp(prefix="asyncstate-tests-", dir=place)
    config.stash[_scratch] = scratch, os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    if config.option.basetemp is None:
        config.option.basetemp = os.path.join(scratch, "pytest")
    if getattr(config.option, "numprocesses", None):  # whole suites, which start many a JVM
        archive = Path(scratch, "classes.jsa")
        config.stash[_archive] = class_archive.Making(archive)
        os.environ[class_archive.VARIABLE] = class_archive.java_options(archive)


def _spark_version() -> tuple[int, int]:
    major, minor, *_ = metadata.version("pyspark").split(".")
    return int(major), int(minor)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete what is left; pytest keeps the folders of tests that failed until here."""
    if _archive in config.stash:
        config.stash[_archive].end()
    if _scratch in config.stash:
        shutil.rmtree(config.stash[_scratch][0], ignore_errors=True)
    gc.unfreeze()  # else native classes are still there at the end, and are reported as leaks
    gc.callbacks.clear()  # that of hypothesis refers to its module, and so to all tests and what they import


_scratch = pytest.StashKey[tuple[str, str | None]]()
_archive = pytest.StashKey[class_archive.Making]()


def in_memory() -> Path | None:
    """A folder that is in memory, if there is one with room for what tests write."""
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK)
    return _IN_MEMORY if usable and shutil.disk_usage(_IN_MEMORY).free >= _IN_MEMORY_BYTES_MIN else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The thousands of tests stay for the whole run: the garbage collector does not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: what shares the Spark session, then what starts a Spark of its own, then the rest. Skips what
    is about a newer Spark than this one. What needs a server is long."""
    for item in items:
        if not _SERVERS.isdisjoint(re.split(r"[\[\]-]", item.nodeid)):
            item.add_marker(pytest.mark.long)
        since = item.get_closest_marker("since_spark")
        if since is not None and _spark_version() < tuple(map(int, since.args[0].split("."))):
            item.add_marker(pytest.mark.skip(reason=f"Spark has {since.args[1]} from {since.args[0]} on"))
    items.sort(key=lambda item: (not _shares_session(item.nodeid), item.get_closest_marker("spark") is None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spread by file, but the files that share a Spark session go to one worker, so that its start is paid once: those
    of SQL to one, all others to another, since one alone would be the last to end.

    A scheduler of our own: with pytest 9.2, xdist 3.8 no longer sees `xdist_group`, and spreads test by test.
    """
    from xdist.scheduler import LoadScopeScheduling

    class BySession(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not _shares_session(nodeid):
                return nodeid.partition("::")[0]
            return "spark, SQL" if nodeid.startswith(("tests/sql/", "tests/nexmark/")) else "spark"

    return BySession(config, log)


def _shares_session(nodeid: str) -> bool:
    return _file_shares_session(nodeid.partition("::")[0])


@cache
def _file_shares_session(file: str) -> bool:
    # The scheduler knows names only; in tests/spark the session comes through fixtures of that folder.
    return file.startswith("tests/spark/") or "spark: SparkSession" in (ROOT / file).read_text()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder on a real disk, for what memory cannot show: direct reads, links across file systems."""
    with tempfile.TemporaryDirectory(prefix="asyncstate-tests-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def async_enabled(request: pytest.FixtureRequest) -> bool:
    """Runs the test once with `async-state.enabled=false` and once with `true`."""
    enabled: bool = request.param
    return enabled


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 on the loopback for the whole run; `s3.place()` gives the URI of a new bucket."""
    from tests.s3_server import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A Kafka broker on the loopback for the whole run, with a listener for SASL and TLS; tests name their topics."""
    from tests.servers.kafka import MISSING, jars, kafka_broker

    if not jars("kafka"):
        no_server(MISSING)
    with kafka_broker(tmp_path_factory.mktemp("kafka"), is_secure=True) as broker:
        yield broker


def no_server(what: str) -> None:
    """Leave the test out, on a machine that need not have every server; CI installs them first."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Runs the test once for each kind of place that a checkpoint may have."""
    if request.param == "folder":
        return str(tmp_path / "checkpoint")
    server: S3Server = request.getfixturevalue("s3")
    return server.place()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole run: two local cores, two partitions after an exchange, nothing left behind.

    Shared, so a test changes the session's configuration only in a session of its own: `spark.newSession()`, or
    `another_session(spark)` if it also runs over Spark Connect.
    """
    java = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "check_java.py")], capture_output=True, text=True, check=False
    )
    if java.returncode != 0:
        pytest.fail(f"tests that need Spark cannot run on this machine.\n{java.stderr}", pytrace=False)
    if os.environ.get(REMOTE):
        yield _remote_spark(tmp_path_factory.mktemp("connect"))
        return
    session = _start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def another_session(spark: SparkSession) -> SparkSession:
    """A session with settings of its own, on the Spark of ``spark``. `newSession` of Spark Connect came with 4.3."""
    from asyncstate.spark.compatibility import is_connect

    if not is_connect(spark):
        return spark.newSession()
    remote: Any = spark
    session: SparkSession = type(spark)(remote.client._builder)
    return session


def _remote_spark(folder: Path) -> SparkSession:
    from asyncstate.spark.session import remote_session
    from tests.connect.server import ConnectServer

    server = ConnectServer(folder)
    atexit.register(server.kill)  # after Spark's clients, which would wait for it
    return remote_session(server.url, {"spark.async-state.executor": "spark"})


def _start_spark(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from asyncstate.spark.session import local_logs

    # Workers must be this interpreter and must find test modules by name, wherever pytest was started.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    options = {
        # With few rows, operators would run in this process. A run with "local" here tests that they could.
        "spark.async-state.executor": os.environ.get("ASYNCSTATE_TEST_EXECUTOR", "spark"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": search_path,
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("asyncstate-tests")
    for key, value in (options | local_logs("local[2]", options)).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
