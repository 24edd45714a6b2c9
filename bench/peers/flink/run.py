"""Flink's side of the comparison: the Nexmark queries in Flink SQL (``queries.sql``) and the statements around them;
its Python, its input, its runs, its results.

Invariant: a rate is only given for what was found right. A query has the columns of its ``QuerySpec``. ``rt`` is the
event time in milliseconds, all that Flink's watermarks take; ``dateTime`` has the microseconds. Must not import Spark.

Source: ``queries/*.sql`` of github.com/nexmark/nexmark. Not here: q6, which it marks as not supported; q12, whose
windows are of the clock, so that two engines have no result in common; and those without state.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from bench.frame import CaseError
from bench.nexmark.comparison import ComparisonResult, compare
from bench.nexmark.oracle import EVENT_KINDS, QUERIES, SHARED, QuerySpec, read_queries, register_events
from bench.processor_time import Spent

NULL_TEXT = "~"  # in a CSV file; an empty text is not none

_TYPES = {"bigint": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP(6)", "int": "INT"}
_KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
_TIMES = ("dateTime", "expires")
_TEXTS = ["name", "city", "state", "itemName", "description", "channel", "url", "extra"]
_TEXTS += ["emailAddress", "creditCard"]

_SHARED = {
    **SHARED,
    "auction": ", ".join(f"A.{name}" for name in QUERIES["q9"].needs["auction"]),
    "hops": """
    SELECT auction, count(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end""",
}
_QUERIES = {name: sql for (name,), sql in read_queries(Path(__file__).with_name("queries.sql"), **_SHARED)}
_QUERIES |= {name: QUERIES[name].sql for name in ("q3", "q20")}  # which are the same in both
FLINK_QUERIES: Mapping[str, str] = {
    name: re.sub(r"\bdateTime\b", "`dateTime`", _QUERIES[name])  # a reserved word in Flink
    for name in QUERIES
    if name in _QUERIES
}
"""By name. Joins that are not of windows take no ``rt``: Flink allows no event time in their inputs."""

LAST_COUNTS: Mapping[str, str] = {"q9": "id"}
"""Queries of which Flink may leave the rows before an update out, as its asynchronous top 1 does, and their keys."""

_EVENT_TIMED = {"window_join", "window_rank", "temporal_join", "over_range", "match"}
_EVENT_TIMED |= {"q5", "q7", "q8", "q11", "q18"}


def fields(spec: QuerySpec) -> list[tuple[str, str, str]]:
    """Kind, field and Flink type of each column after ``event_type`` and ``dateTime``."""
    types = dict.fromkeys(_TIMES, "TIMESTAMP(6)") | dict.fromkeys(_TEXTS, "STRING")
    return [(kind, name, types.get(name, "BIGINT")) for kind, names in spec.needs.items() for name in names]


def statements(spec: QuerySpec, folder: str) -> list[str]:
    """Tables and views over the CSV files in ``folder``, and the sink that drops what it gets."""
    columns = ", ".join(f"`{kind}_{name}` {kind_type}" for kind, name, kind_type in fields(spec))
    timed = spec.name in _EVENT_TIMED
    rt = ", rt AS CAST(event_time AS TIMESTAMP(3)), WATERMARK FOR rt AS rt - INTERVAL '4' SECOND"
    csv = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv', 'csv.null-literal' = '{NULL_TEXT}'"
    declared = f"event_type INT, event_time TIMESTAMP(6), {columns}{rt if timed else ''}"
    made = [f"CREATE TABLE events ({declared}) WITH ({csv})"]
    for number, kind in enumerate(EVENT_KINDS):
        names = [f"`{kind}_{name}` AS `{name}`" for name in spec.needs.get(kind, ())]
        if names:
            chosen = ", ".join([*names, "rt"] if timed else names)
            made.append(f"CREATE VIEW {kind} AS SELECT {chosen} FROM events WHERE event_type = {number}")
    if spec.name == "temporal_join":  # Flink's way from rows to versions: the last row of a key
        last = "SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY rt DESC) AS place FROM auction"
        versions = f"SELECT id, category, rt FROM ({last}) WHERE place = 1"
        made.append(f"CREATE VIEW auction_versions AS {versions}")
    sink = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in spec.columns.items())
    return [*made, f"CREATE TABLE dropped ({sink}) WITH ('connector' = 'blackhole')"]


def dropping(spec: QuerySpec) -> str:
    return f"INSERT INTO dropped {FLINK_QUERIES[spec.name]}"


def reading(spec: QuerySpec) -> tuple[list[str], str]:
    """What is to be made for it, and the statement that reads what the query reads and does nothing else."""
    columns = {"event_type": "INT", "event_time": "TIMESTAMP(6)"}
    columns |= {f"{kind}_{name}": kind_type for kind, name, kind_type in fields(spec)}
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    names = ", ".join(f"`{name}`" for name in columns)
    made = [f"CREATE TABLE only_read ({declared}) WITH ('connector' = 'blackhole')"]
    return made, f"INSERT INTO only_read SELECT {names} FROM events"


def keeping(spec: QuerySpec, folder: str) -> tuple[list[str], str]:
    """What is to be made for it, and the statement that runs the query and writes every change into ``folder``. Lines
    of JSON, the row kind in ``row_kind``; timestamps are text. Needs Flink 2.3."""
    columns = {name: "STRING" if kind == "timestamp" else _TYPES[kind] for name, kind in spec.columns.items()}
    times = [name for name, kind in spec.columns.items() if kind == "timestamp"]
    texts = {name: f"CAST(`{name}` AS STRING) AS `{name}`" for name in times}
    chosen = ", ".join(texts.get(name, f"`{name}`") for name in columns)
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    place = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'json'"
    made = [f"CREATE VIEW changes AS SELECT {chosen} FROM ({FLINK_QUERIES[spec.name]})"]
    made.append(f"CREATE TABLE kept (row_kind STRING, {declared}) WITH ({place})")
    kinds = ", ".join(f"'{name}', '{kind}'" for name, kind in _KINDS.items())
    changes = f"TO_CHANGELOG(input => TABLE changes, op => DESCRIPTOR(row_kind), op_mapping => MAP[{kinds}])"
    names = ", ".join(f"`{name}`" for name in ("row_kind", *columns))
    return made, f"INSERT INTO kept SELECT {names} FROM {changes}"


PYTHON_VARIABLE = "ASYNCSTATE_FLINK_PYTHON"
_CHILD = Path(__file__).with_name("child.py")
_PROCESSOR_TIME = Path(__file__).parents[2] / "processor_time.py"
_PREFIX = "FLINK-SECONDS "
_PROBE = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('pyflink') else 1)"
_COUNTED = "SELECT key, row_number() OVER (PARTITION BY key) AS n FROM {rows}"
_VALUES = "SELECT key, key * 31 % 1000003 AS value, value % 7 + 1 AS weight FROM {rows}"
_MEAN = "CAST(sum(value * weight) AS DOUBLE) / sum(weight) AS mean"
_MEANS = f"SELECT key, {_MEAN} FROM ({_VALUES}) GROUP BY key"
_KEYED: Mapping[str, tuple[dict[str, str], str, str | None]] = {
    "counter": ({"key": "BIGINT", "n": "BIGINT"}, _COUNTED, None),
    "mean": ({"key": "BIGINT", "mean": "DOUBLE"}, _MEANS, "key"),
}
"""Of a job in PyFlink its columns, the answer in DuckDB, and the key of which only the last row counts."""
_DUCKDB_TYPES = {"bigint": "BIGINT", "string": "VARCHAR", "timestamp": "TIMESTAMP"}


def find_flink(option: Path | None) -> Path | str:
    """The Python that has ``apache-flink``, or why there is none."""
    named = str(option) if option is not None else os.environ.get(PYTHON_VARIABLE)
    if named is None:
        if importlib.util.find_spec("pyflink") is not None:
            return Path(sys.executable)
        return f"apache-flink is not installed here; name a Python that has it with --flink-python or {PYTHON_VARIABLE}"
    try:
        found = subprocess.run([named, "-c", _PROBE], capture_output=True, check=False).returncode == 0
    except OSError as error:
        return f"{named} cannot be run: {error}"
    return Path(named) if found else f"{named} does not have apache-flink"


class Sizes(NamedTuple):
    """Events (or rows) of the input whose result is checked, and of the two whose times are compared."""

    check: int
    short: int
    long: int


class Flink:
    """Runs jobs in a child process of Flink's Python; everything it writes is below ``folder``."""

    def __init__(self, python: Path, folder: Path, cores: int) -> None:
        self._python, self._folder, self._cores = python, folder, cores

    def conf(self, backend: str = "rocksdb") -> dict[str, str]:
        """Settings as in the benchmark's own configuration, with state in ``backend``: rocksdb, hashmap (the heap), or
        forst, whose access is asynchronous. Mini-batches where Flink has them, which is not with asynchronous state.
        What lies in the heap is copied whole at each checkpoint, so these are further apart."""
        settings = {
            "parallelism.default": str(self._cores),
            "execution.runtime-mode": "STREAMING",
            "execution.checkpointing.interval": "10 s" if backend == "hashmap" else "2 s",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.dir": (self._folder / "checkpoints").resolve().as_uri(),
            "state.backend.type": backend,
            "taskmanager.memory.managed.size": "1g",
            "pipeline.object-reuse": "true",
            "python.executable": str(self._python),
            "python.client.executable": str(self._python),
            "python.execution-mode": "process",
        }
        if backend == "forst":
            return settings | {"table.exec.async-state.enabled": "true"}
        return settings | {
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": "2 s",
            "table.exec.mini-batch.size": "50000",
        }

    def check_query(self, spec: QuerySpec, events: Path, count: int, backend: str) -> ComparisonResult:
        """Compare the query's result on the first ``count`` events with DuckDB's."""
        source = self._csv(spec, events, count).resolve().as_uri()
        rows = self._folder / f"{spec.name}-{backend}-rows"
        made, insert = keeping(spec, rows.resolve().as_uri())
        self._start(self.conf(backend), [{"ddl": [*statements(spec, source), *made], "insert": insert}])
        with duckdb.connect() as connection:
            register_events(connection, events)
            until = _until(connection, events, count)
            for kind in EVENT_KINDS:
                first = f"SELECT * FROM {kind} WHERE dateTime < TIMESTAMP '{until}'"
                connection.execute(f"CREATE TEMP TABLE first_{kind} AS {first}")
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {kind} AS SELECT * FROM first_{kind}")
            columns = {name: _DUCKDB_TYPES[kind] for name, kind in spec.columns.items()}
            found = changes_as_parquet(connection, rows, columns, LAST_COUNTS.get(spec.name))
            expected = spec.sql
            if spec.name == "q11":  # as Flink can know it: its session windows have milliseconds
                ends = (f"date_trunc('milliseconds', {name}) AS {name}" for name in ("starttime", "endtime"))
                expected = f"SELECT bidder, bid_count, {', '.join(ends)} FROM ({spec.sql})"
            return compare(connection, expected, found)

    def query_seconds(self, spec: QuerySpec, events: Path, sizes: Sizes, backend: str | None) -> list[Spent]:
        """Times of the short and of the long input, on a JVM that has run the query; of no backend those of reading."""
        made, insert = reading(spec) if backend is None else ([], dropping(spec))
        runs = []
        for count in (sizes.short, sizes.short, sizes.long):
            source = self._csv(spec, events, count).resolve().as_uri()
            runs.append({"ddl": [*statements(spec, source), *made], "insert": insert})
        return self._start(self.conf(backend or "hashmap"), runs)[1:]

    def check_keyed(self, kind: str, keys: Sequence[int]) -> ComparisonResult:
        """Compare the rows of a job in PyFlink, ``counter`` or ``mean``, with DuckDB's."""
        columns, select, upsert_key = _KEYED[kind]
        folder, rows = self._keys(keys), self._folder / f"{kind}-rows"
        self._start(self.conf(), [{kind: str(folder), "columns": list(columns), "rows": str(rows)}])
        with duckdb.connect() as connection:
            found = changes_as_parquet(connection, rows, columns, upsert_key)
            rows_read = f"read_csv('{folder}/*.csv', header = false, columns = {{'key': 'BIGINT'}})"
            return compare(connection, select.format(rows=rows_read), found)

    def keyed_seconds(self, kind: str, short: Sequence[int], long: Sequence[int]) -> list[Spent]:
        """Times of the short and of the long input, on a JVM that has run the job."""
        runs = [{kind: str(self._keys(keys)), "rows": None} for keys in (short, short, long)]
        return self._start(self.conf(), runs)[1:]

    def _csv(self, spec: QuerySpec, events: Path, count: int) -> Path:
        """The query's columns of the first ``count`` events, one file per core, each in order of time. Rows of one
        bidder are in one file: Flink has times in milliseconds, and takes the last of equal ones."""
        folder = self._folder / f"{spec.name}-{count}"
        if folder.exists():
            return folder
        folder.mkdir(parents=True)
        kinds = ", ".join(str(EVENT_KINDS.index(kind)) for kind in spec.needs)
        columns = [_column(kind, name) for kind, name, _ in fields(spec)]
        spread = "hash(bid.bidder)" if spec.name == "q18" else "epoch_us(dateTime) // 100"
        with duckdb.connect(config={"threads": self._cores}) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            until = _until(connection, events, count)
            for number in range(self._cores):
                connection.execute(
                    f"""COPY (
                        SELECT event_type, {_time_text("dateTime", "event_time")}, {", ".join(columns)}
                        FROM read_parquet('{events}/*.parquet')
                        WHERE event_type IN ({kinds}) AND ({spread}) % {self._cores} = {number}
                            AND dateTime < TIMESTAMP '{until}'
                        ORDER BY dateTime
                    ) TO '{folder}/{number}.csv' (FORMAT csv, HEADER false, NULLSTR '{NULL_TEXT}')"""
                )
        return folder

    def _keys(self, keys: Sequence[int]) -> Path:
        folder = self._folder / f"keys-{len(keys)}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(self._cores):
            text = "".join(f"{key}\n" for key in keys[number :: self._cores])
            (folder / f"{number}.csv").write_text(text)
        return folder

    def _start(self, conf: dict[str, str], runs: list[dict[str, Any]]) -> list[Spent]:
        """Times of each run. Raises CaseError if the process fails."""
        task = {"conf": conf, "runs": runs, "processor_time": str(_PROCESSOR_TIME)}
        command = [str(self._python), str(_CHILD), json.dumps(task)]
        # Of this process's environment nothing may reach the other Python.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._folder.mkdir(parents=True, exist_ok=True)
        how: Any = {"cwd": self._folder, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **how)
        if line := next((each for each in done.stdout.splitlines() if each.startswith(_PREFIX)), None):
            return [Spent(*seconds) for seconds in json.loads(line.removeprefix(_PREFIX))]
        said = (done.stdout + done.stderr)[-3_000:]
        raise CaseError(f"Flink failed with exit code {done.returncode}; the end of its output:\n{said}")


def _column(kind: str, name: str) -> str:
    return _time_text(f"{kind}.{name}", f"{kind}_{name}") if name in _TIMES else f"{kind}.{name}"


def _time_text(column: str, name: str) -> str:
    return f"strftime(CAST({column} AS TIMESTAMP), '%Y-%m-%d %H:%M:%S.%f') AS {name}"


def _until(connection: duckdb.DuckDBPyConnection, events: Path, count: int) -> str:
    """The time of event ``count``; beyond the last event, a time later than all."""
    times = f"SELECT CAST(dateTime AS TIMESTAMP) FROM read_parquet('{events}/*.parquet') ORDER BY dateTime"
    row = connection.execute(f"{times} OFFSET {count} LIMIT 1").fetchone()
    return "2999-01-01" if row is None else str(row[0])


def changes_as_parquet(
    connection: duckdb.DuckDBPyConnection, rows: Path, columns: Mapping[str, str], key: str | None = None
) -> Path:
    """A folder of files with lines of JSON, the row kind in ``row_kind``, as one Parquet file; the folder it is in.
    With ``key`` only the last row of each, without its kind. Rows of a key are in the files of one task, which are
    numbered. Within a file their order is that in which DuckDB reads it, which it keeps only where nothing is
    partitioned."""
    folder = rows.with_name(f"{rows.name}-parquet")
    folder.mkdir()
    options = "columns = {'line': 'VARCHAR'}, header = false, delim = '\x01', quote = '', escape = ''"
    lines = f"FROM read_csv('{rows}/part-*', filename = true, {options})"
    file = "CAST(regexp_extract(filename, '-(\\d+)$', 1) AS BIGINT)"
    field = "json_extract_string(line, '$.\"{}\"')".format
    values = ", ".join(f'CAST({field(name)} AS {kind}) AS "{name}"' for name, kind in columns.items())
    chosen = f"SELECT {values}, {field('row_kind')} AS row_kind {lines}"
    if key is not None:
        chosen = f"""
            SELECT * EXCLUDE (file, number) FROM (
                SELECT {values}, {file} AS file, number
                FROM (SELECT *, row_number() OVER () AS number {lines}) WHERE {field("row_kind")} LIKE '+%'
            ) QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY file DESC, number DESC) = 1"""
    connection.execute(f"COPY ({chosen}) TO '{folder}/rows.parquet' (FORMAT parquet)")
    return folder
