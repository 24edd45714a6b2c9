"""ChangelogNormalize: upserts and changelogs with duplicates, by sequence or in their order, with a condition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from operators.upsert.normalize import ChangelogNormalize
from tests.properties.examples import Entries, Example, nullable, small
from tests.properties.histories import Change, Form, History, Record, Row, Table, keyed_changelogs

USERS = pa.schema(
    [
        ("note", pa.string()),
        ("user", pa.int64()),
        ("age", pa.int64()),
        ("seq", pa.int64()),
        ("at", pa.int64()),
    ]
)
NOTE, USER, AGE, SEQUENCE, AT = range(5)
_USER = st.tuples(
    nullable(st.sampled_from("xy")), nullable(small(0, 2)), nullable(small()), *[st.just(0)] * 2
)
_CONDITIONS: list[Any] = [None, pc.field("age") >= 1, lambda batch: pc.greater_equal(batch["age"], 1)]


def _identity(row: Row) -> Any:
    return row[USER]


@st.composite
def _with_duplicates(draw: st.DrawFn, history: History, in_order: bool) -> History:
    """Rows of -D have only their key and their place in the log; some rows that are added come twice."""
    changes: list[Change] = []
    for change in history.changes:
        order_key = ("user", _identity(change.records[-1].row)) if in_order else None
        records = tuple(_bare(record) for record in change.records)
        changes.append(Change(records, order_key))
        if records[-1].added and draw(st.booleans()):
            changes.append(Change(records[-1:], order_key))
    return replace(history, changes=changes, identities=[_identity])


def _bare(record: Record) -> Record:
    row = record.row
    return (
        record if record.kind != "-D" else record._replace(row=(None, row[USER], None, row[SEQUENCE], None))
    )


@st.composite
def normalizations(
    draw: st.DrawFn, form: Form, in_sequence: bool = True, drop_stale: bool = False
) -> Example:
    """One row a user. Without a sequence the changes of a user keep their order."""
    condition = draw(st.sampled_from(_CONDITIONS))

    def expected(tables: list[Table]) -> Table:
        rows = tables[0].elements()
        return Counter(row for row in rows if condition is None or (row[AGE] or 0) >= 1)

    history = draw(keyed_changelogs(_USER, _identity, form, sequence_at=SEQUENCE, size=20))
    if not drop_stale:  # which drops a row that comes twice by itself, and counts it
        history = draw(_with_duplicates(history, not in_sequence))
    return Example(
        make=lambda: ChangelogNormalize(condition),
        inputs=[USERS],
        key=[["user"]],
        history=history,
        expected=expected,
        settings={"sequence": "seq" if in_sequence else None, "drop_stale": drop_stale},
        shuffle="any" if in_sequence else "within keys",
        output_key=_identity,
        come_again=drop_stale,
        whole_updates=form == "full",  # -U is ignored: the row stays until its +U
    )


NORMALIZATIONS: Entries = {
    "upserts by sequence": normalizations("upsert"),
    "upserts in their order": normalizations("upsert", in_sequence=False),
    "a changelog by sequence": normalizations("full"),
    "a changelog in its order": normalizations("full", in_sequence=False),
    "upserts that come again": normalizations("upsert", drop_stale=True),
    "a changelog that comes again": normalizations("full", drop_stale=True),
}
