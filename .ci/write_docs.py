"""Write the pages of `docs/` that are made from the code; with `--check`, only say which are out of step.

Owns: `docs/configuration.md`, `docs/errors.md`, and the tables of what the package runs on. Invariant:
what it writes depends on the code alone, not on the machine.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from pathlib import Path

import matrix
from error_messages import Message, messages

from asyncstate import errors
from asyncstate.config import OPTIONS, default_text

DOCS = Path(__file__).resolve().parents[1] / "docs"

CONFIGURATION_HEAD = """\
# Configuration

<!-- Written by `make docs` from asyncstate/config.py; edit that instead. -->

The first of these counts: the operator's option (`apply(..., options={...})`), the job's option (`StreamingJob(spark,
folder, options={...})`), the Spark session (`spark.async-state.enabled`, or the key without `spark.`, which
`spark-submit` drops), the default. Unknown keys and values out of range are refused before a row is read. In a text, a
size or duration needs a unit (`64mb`, with b, kb, mb and gb of 1024; or ms, s, min, h; or `10 minutes`). An int is in
bytes or milliseconds; a `timedelta` is a duration. All operators of a job share `checkpoint-dir`, `memory`,
`retained-versions` and `max-parallelism`.

| Key | Default | Takes | Meaning |
|---|---|---|---|
"""


def configuration_page() -> str:
    """The page on the configuration keys: how they are resolved, then a table row for each."""
    rows = [
        f"| `{option.key}` | {default_text(name)} | {option.accepts} | {option.doc} |\n"
        for name, option in OPTIONS.items()
    ]
    return CONFIGURATION_HEAD + "".join(rows)


ERRORS_HEAD = """\
# Error messages

<!-- Written by `make docs` from the code that raises them; edit that, or .ci/write_docs.py. -->

Every error that is raised on purpose is an `AsyncStateError` of one of the classes below. Its message says what is
wrong and where, and after a semicolon or a full stop what to do next. An error of a task reaches the driver as the
same class with the same message; its cause is the traceback of the Python worker. Whatever fails a micro-batch,
nothing of that micro-batch is committed.

This page has all messages, by class and by the part of the package that raises them. `{name}` is in place of what only
the running program knows. To find yours, search for the words between such places.

"""

NEXT_STEPS = {
    "AsyncStateError": "Catch it to handle whatever asyncstate refuses.",
    "ConfigurationError": "Correct the key or value named; all keys with ranges: [configuration.md](configuration.md). "
    "Raised on the driver before a row is read.",
    "SchemaError": "Correct the declaration or the DataFrame: the message lists the columns there are, or the type "
    "that fits. Most are raised on the driver before a row is read, those about values by the task.",
    "StateDeclarationError": "Give the state the declaration that the checkpoint has, or another name, or migrate it: "
    "[schema-changes.md](schema-changes.md).",
    "StateAccessError": "Move the access to where the state has a key, or give a value that it takes: "
    "[state.md](state.md).",
    "FutureStateError": "Return each chain from `process`, and use a future only in the record that made it: "
    "[writing-operators.md](writing-operators.md).",
    "SqlError": "Change the statement as the message says; it has the line and the part concerned. "
    "[sql.md](sql.md) lists what is kept up to date. Raised on the driver before a row is read.",
    "OperatorError": "Code that you gave the operator failed; the cause is your own exception, with its line.",
    "CodecError": "Give a value of the declared type. If it is about stored bytes, they were written under another "
    "declaration, or are damaged: `asyncstate state verify` says which ([inspecting.md](inspecting.md)).",
    "CheckpointError": "Look at the place that the message names: [checkpoints.md](checkpoints.md), "
    "[inspecting.md](inspecting.md).",
    "CheckpointCorruptionError": "Put the named file back from a copy, or roll back to the version named: "
    "[inspecting.md](inspecting.md#after-a-rollback).",
    "ConcurrentJobError": "One of two drivers has to stop: [exactly-once.md](exactly-once.md).",
    "StoreError": "See to the disk and the folder that the message names. The checkpoint is not affected: a local "
    "store is built again from it.",
    "EnvironmentSetupError": "Install what is missing; the message has the command.",
    "JobError": "Correct the use of the job, the harness or the DataFrame that the message names.",
}
"""What to do about an error of a class: a class without an entry is an error."""


def errors_page() -> str:
    """The page on messages: what the classes mean, then each class's messages by the part that raises them."""
    classes = {name: thing for name, thing in vars(errors).items() if inspect.isclass(thing)}
    found = sorted(
        messages(),
        key=lambda message: (list(classes).index(message.error), message.room, message.text.lower()),
    )
    index = "".join(f"* {_class_link(name, found)}: {_meaning(thing)}\n" for name, thing in classes.items())
    parts = [ERRORS_HEAD, index]
    for name, of_class in itertools.groupby(found, key=lambda message: message.error):
        parts.append(f"\n## {name}\n\n{_meaning(classes[name])} {NEXT_STEPS[name]}\n")
        for room, of_room in itertools.groupby(of_class, key=lambda message: message.room):
            parts.append(
                f"\n### {name} in {room}\n\n"
                + "".join(f"* {_as_code(message.text)}\n" for message in of_room)
            )
    return "".join(parts)


def _meaning(error: type) -> str:
    """A docstring, whose code is reStructuredText's, in Markdown."""
    return (inspect.getdoc(error) or "").replace("``", "`")


def _class_link(name: str, found: list[Message]) -> str:
    return f"[{name}](#{name.lower()})" if any(message.error == name for message in found) else f"`{name}`"


def _as_code(text: str) -> str:
    """Markdown's code, also of a text that has backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


BEGIN, END = "<!-- Written by `make docs` from .ci/matrix.py. -->\n", "<!-- End of what is written. -->\n"


def with_matrix(page: Path) -> str:
    """The page with the table of Sparks, Pythons and Javas that is made from the list of what is tested."""
    before, rest = page.read_text("utf-8").split(BEGIN)
    return before + BEGIN + matrix_table(page.parent) + END + rest.split(END)[1]


def matrix_table(folder: Path) -> str:
    """A row for each Spark, for a page in ``folder``."""
    limits = os.path.relpath(DOCS / "connect.md", folder)
    rows = [
        "| Spark | tested with | classic session | Spark Connect | Python | Java |\n|---|---|---|---|---|---|\n"
    ]
    for spark in matrix.SPARKS:
        newest = spark is matrix.NEWEST
        pythons = ", ".join(matrix.PYTHONS if newest else matrix.PYTHONS[:1])
        javas = ", ".join(matrix.JAVAS if newest else matrix.JAVAS[:1])
        connect = f"[{spark.connect}]({limits})" if spark.connect else "no"
        rows.append(f"| {spark.line} | {spark.release} | yes | {connect} | {pythons} | {javas} |\n")
    return "".join(rows)


def main(arguments: list[str]) -> int:
    pages = {DOCS / "configuration.md": configuration_page(), DOCS / "errors.md": errors_page()}
    tables = (DOCS.parent / "README.md", DOCS / "install.md", DOCS / "versions.md")
    pages |= {page: with_matrix(page) for page in tables}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is out of step with the code; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path], "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
