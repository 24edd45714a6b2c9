"""What the rows of each node are: modes and unique keys through every kind of node, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstate import Changelog
from asyncstate.changelog import union_of
from asyncstate.dataflow.changelog_inference import changes_by_itself
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource
from operators import (
    ChangelogNormalize,
    Deduplicate,
    GroupAggregate,
    Join,
    LookupJoin,
    OverAggregate,
    Rank,
    TemporalJoin,
    UpsertMaterialize,
    WindowAggregate,
    count,
    cumulate,
    desc,
    max_,
    range_,
    sum_,
    tumble,
)

SCHEMA = "k string, v bigint, at timestamp"
PLAIN = PipelineSource(SCHEMA, event_time="at", watermark_delay=0)
KEYED = PipelineSource(SCHEMA, event_time="at", watermark_delay=0, primary_key="k")
UPSERTS = PipelineSource(SCHEMA, mode="upsert", primary_key="k")
CHANGES = PipelineSource(SCHEMA, mode="retract", primary_key="k")


def changes_of(build: Callable[[Any], Any], source: PipelineSource = PLAIN) -> str:
    """What is known of the rows of the stream that ``build`` makes of the source."""
    made: list[Any] = []

    def flow(rows: Any) -> None:
        made.append(build(rows))
        made[0].to(print, name="sink")

    with PipelineHarness(flow, {"rows": source}) as harness:
        return harness.changes[made[0].node].text


def refused(build: Callable[[Any], Any], source: PipelineSource = UPSERTS) -> str:
    """The error that names what cannot be."""
    with pytest.raises(AsyncStateError) as error:
        changes_of(build, source)
    return str(error.value)


def total(rows: Any, **settings: Any) -> Any:
    return rows.apply(GroupAggregate([sum_("v").alias("n")], **settings), key="k", uid="total")


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (total, "retract, unique (k)"),
        (lambda rows: total(rows, emit_update_before=False), "upsert by (k)"),
        (lambda rows: rows.apply(GroupAggregate(), key="k", uid="d"), "insert-only, unique (k)"),
        (lambda rows: rows.apply(GroupAggregate(ttl="1 hour"), key="k", uid="d"), "retract, unique (k)"),
        (lambda rows: rows.apply(GroupAggregate([count()]), uid="all"), "retract, a single row"),
        (
            lambda rows: rows.apply(OverAggregate([count()], range_("1 hour")), key="k", uid="o"),
            "insert-only",
        ),
        (
            lambda rows: rows.apply(WindowAggregate(tumble("1 hour"), [max_("v")]), key="k", uid="w"),
            "insert-only, unique (k, window_end) and (k, window_start) and (k, window_time)",
        ),
        (
            lambda rows: rows.apply(WindowAggregate(cumulate("1 day", "1 hour")), key="k", uid="w"),
            "insert-only, unique (k, window_end) and (k, window_time)",
        ),
        (
            lambda rows: rows.apply(Deduplicate(time="processing"), key="k", uid="d"),
            "insert-only, unique (k)",
        ),
        (lambda rows: rows.apply(Deduplicate("last"), key="k", uid="d"), "retract, unique (k)"),
        (lambda rows: rows.apply(Rank(desc("v"), 3), key="k", uid="r"), "retract"),
        (lambda rows: rows.apply(Rank(desc("v"), 1), key="k", uid="r"), "retract, unique (k)"),
        (
            lambda rows: rows.apply(
                Rank(desc("v"), 3, rank_column="n", emit_update_before=False), key="k", uid="r"
            ),
            "upsert by (k, n)",
        ),
        (lambda rows: rows.join(rows, Join(), key="k", uid="j"), "insert-only"),
        (lambda rows: rows.join(rows, Join("left"), key="k", uid="j"), "retract"),
        (
            lambda rows: total(rows).join(rows, Join(left_unique="join_key"), key="k", uid="j"),
            "retract",
        ),
        (
            lambda rows: total(rows).join(
                rows.apply(GroupAggregate([count()]), key="k", uid="c"), Join(), key="k", uid="j"
            ),
            "retract, unique (k) and (k_right)",
        ),
    ],
)
def test_operators_say_what_they_put_out(build: Callable[[Any], Any], found: str) -> None:
    assert changes_of(build) == found


@pytest.mark.parametrize(
    ("build", "found"),
    [
        (lambda rows: rows, "insert-only, unique (k)"),
        (lambda rows: rows.where("v > 5"), "insert-only, unique (k)"),
        (lambda rows: rows.select("k AS key", "v"), "insert-only, unique (key)"),
        (lambda rows: rows.select("upper(k) AS k", "v"), "insert-only"),
        (lambda rows: rows.select("*"), "insert-only, unique (k)"),
        (lambda rows: rows.select("* except (K)"), "insert-only"),
        (lambda rows: rows.select("* except (v)"), "insert-only, unique (k)"),
        (lambda rows: rows.select("v"), "insert-only"),
        (lambda rows: rows.select(key="k", v="v + 1"), "insert-only, unique (key)"),
        (lambda rows: rows.with_columns(w="v + 1"), "insert-only, unique (k)"),
        (lambda rows: rows.with_columns(K="upper(k)"), "insert-only"),
        (lambda rows: rows.drop("v"), "insert-only, unique (k)"),
        (lambda rows: rows.select("k", "explode(array(v, 1)) AS x"), "insert-only"),
        (lambda rows: rows.with_columns(x="posexplode_outer (array(v, 1))"), "insert-only"),
        (lambda rows: total(rows).select("k", "explode_outer(array(1, 1)) AS x"), "retract"),
        (lambda rows: rows.drop("k"), "insert-only"),
        (lambda rows: rows.union(rows), "insert-only"),
        (lambda rows: total(rows).select("k", "n").union(rows.select("k", "v AS n")), "retract"),
    ],
)
def test_unique_keys_pass_where_their_columns_do(build: Callable[[Any], Any], found: str) -> None:
    assert changes_of(build, KEYED) == found


def test_upserts_pass_what_keeps_their_key() -> None:
    assert changes_of(lambda rows: rows.where("k = 'a'"), UPSERTS) == "upsert by (k)"
    assert changes_of(lambda rows: rows.where("K = 'a'"), UPSERTS) == "upsert by (k)"
    assert changes_of(lambda rows: rows.select("k AS key", "v"), UPSERTS) == "upsert by (key)"
    assert (
        changes_of(lambda rows: rows.apply(ChangelogNormalize(), key="k", uid="n"), UPSERTS)
        == "retract, unique (k)"
    )
    assert (
        changes_of(lambda rows: rows.apply(UpsertMaterialize(["k"]), key="k", uid="m"), UPSERTS)
        == "retract, unique (k)"
    )
    assert (
        changes_of(
            lambda rows: rows.join(
                rows, Join(left_unique="join_key", right_unique="join_key"), key="k", uid="j"
            ),
            UPSERTS,
        )
        == "retract, unique (k) and (k_right)"
    )


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda rows: rows.where("v > 5"), ["where v > 5", "source 'rows'", "upsert by (k)"]),
        (
            lambda rows: rows.select("k", "explode(array(v)) AS x"),
            ["source 'rows'", "upsert by (k)", "explode makes several rows of one"],
        ),
        (lambda rows: rows.where("rand() < 0.5"), ["ChangelogNormalize() with key=['k']"]),
        (
            lambda rows: rows.where("k = 'a' AND current_date() > DATE'2024-01-01'"),
            ["uses columns outside that key"],
        ),
        (lambda rows: rows.where("k = uuid()"), ["uses columns outside that key"]),
        (lambda rows: rows.select("v"), ["column 'k' of that key is changed"]),
        (lambda rows: rows.union(rows), ["does not identify a row"]),
        (lambda rows: rows.drop("row_kind"), ["would all be insertions"]),
        (total, ["'total' (GroupAggregate)", "source 'rows'", "ChangelogNormalize() with key=['k'] between"]),
        (lambda rows: rows.apply(Rank(desc("v"), 3), key="k", uid="r"), ["'r' (Rank)"]),
        (lambda rows: rows.apply(ChangelogNormalize(), key="v", uid="n"), ["'n' (ChangelogNormalize)"]),
        (lambda rows: rows.join(rows, Join(), key="k", uid="j"), ["'j' (Join)", "left"]),
    ],
)
def test_what_needs_the_row_before_a_change_refuses_upserts(
    build: Callable[[Any], Any], told: list[str]
) -> None:
    text = refused(build)
    assert all(one in text or one == "left" for one in told), text


def test_the_way_out_names_the_operator_that_leaves_the_row_before_out() -> None:
    text = refused(lambda rows: total(rows, emit_update_before=False).where("n > 5"), PLAIN)
    assert "where n > 5" in text
    assert "eave emit_update_before=False out at operator 'total' (GroupAggregate)" in text


def test_a_filter_that_parts_an_update_is_refused_before_what_looks_at_new_rows_alone() -> None:
    def normalized(rows: Any) -> Any:
        return rows.where("v > 5").apply(ChangelogNormalize(), key="k", uid="n")

    def versions(rows: Any) -> Any:
        return rows.join(
            rows.where("v > 5"), TemporalJoin(time="processing"), key="k", uid="t", event_time=(None, None)
        )

    assert "filtered by 'v'" in refused(normalized, CHANGES)
    assert "filtered by 'v'" in refused(versions, CHANGES)
    kept = changes_of(
        lambda rows: rows.where("k > 'a'").apply(ChangelogNormalize(), key="k", uid="n"), CHANGES
    )
    assert kept == "retract, unique (k)"


@pytest.mark.parametrize(
    "condition",
    [
        "at > current_timestamp() - INTERVAL 1 DAY",
        "at > now()",
        "cast(at AS DATE) = current_date",
        "cast(at AS DATE) = curdate()",
        "at > TIMESTAMP 'today'",
        "v > 5 OR rand() < 0.5",
    ],
)
def test_a_filter_whose_value_varies_is_refused_over_changes(condition: str) -> None:
    """A row could pass it, and its retraction, a day later, not: a sum of the rows would never fall again."""
    for build, source in (
        (lambda rows: total(rows.where(condition)), CHANGES),
        (lambda rows: total(rows).select("*", "now() AS at", "n AS v").where(condition), PLAIN),
    ):
        text = refused(build, source)
        assert "its retraction not. Put the value into a column of the source" in text
        assert f"where {condition}" in text


def test_a_filter_by_what_a_session_is_is_the_same_each_time() -> None:
    assert not changes_by_itself("k = current_user() AND v > 5")
    assert changes_by_itself("k = uuid()")


def test_insertions_may_go_where_no_row_can_be_taken_back() -> None:
    def flow(rows: Any) -> Any:
        hour = rows.apply(OverAggregate([count().alias("n")], range_("1 hour")), key="k", uid="hour")
        return hour.apply(LookupJoin(lambda keys: [[(1,)] for _ in keys], "w bigint"), key="k", uid="look")

    assert changes_of(flow) == "insert-only"


def test_a_changelog_is_refused_by_name_where_no_row_can_be_taken_back() -> None:
    text = refused(lambda rows: total(rows).apply(Deduplicate("last", "processing"), key="k", uid="d"), PLAIN)
    assert "'d' (Deduplicate)" in text
    assert "operator 'total' (GroupAggregate)" in text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "upserts"}, "mode is 'upserts'"),
        ({"mode": "upsert"}, "give primary_key"),
        ({"mode": "insert-only", "changelog": True}, "give one of them"),
        ({"primary_key": []}, "primary_key is []"),
        ({"primary_key": "id"}, "there is no column 'id'"),
    ],
)
def test_sources_declare_what_their_rows_are(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(JobError, match="source") as error:
        changes_of(lambda rows: rows, PipelineSource(SCHEMA, **settings))
    assert told in str(error.value)


def test_explain_shows_what_each_node_gives() -> None:
    def flow(rows: Any) -> None:
        total(rows, emit_update_before=False).to(print, name="sink")

    with PipelineHarness(flow, {"rows": KEYED}) as harness:
        first, second, *_ = harness.explain().splitlines()
    assert "gives insert-only, unique (k)" in first
    assert "gives upsert by (k)" in second


def test_keys_that_hold_another_one_say_no_more() -> None:
    assert Changelog.insert_only(["a", "b"], "a", "c").unique_keys == (("a",), ("c",))
    assert Changelog.upsert("a", "b").with_keys([("a",)]).unique_keys == (("a", "b"), ("a",))
    assert Changelog.upsert("a", "b").with_keys([("a",)]).upserts_by(["a"])
    assert not Changelog.upsert("a").upserts_by(["a", "b"])
    with pytest.raises(SchemaError, match="upsert key"):
        Changelog(Changelog.upsert("a").mode)
    assert union_of([Changelog.upsert("a"), Changelog.insert_only()]) is None


@pytest.mark.parametrize("name", ["ROW_KIND", "Row_Kind"])
def test_the_column_of_kinds_in_other_letters_is_refused(name: str) -> None:
    said = (
        f"column '{name}' differs only in case from 'row_kind'.* rename it to 'row_kind' if it has row kinds"
    )
    with pytest.raises(JobError, match=f"source 'rows'.*{said}"):
        changes_of(lambda rows: rows.where("v > 1"), PipelineSource(f"{SCHEMA}, {name} string"))
    with pytest.raises(JobError, match=said):
        changes_of(lambda rows: rows.with_columns(**{name: "k"}), CHANGES)
    with pytest.raises(JobError, match=said):
        changes_of(lambda rows: rows.select("k", **{name: "k"}))
    with pytest.raises(SchemaError, match=said):
        OperatorHarness(GroupAggregate([count()]), f"{SCHEMA}, {name} string", "k")


def test_an_operator_cannot_give_its_rows_the_column_of_kinds_in_other_letters() -> None:
    with pytest.raises(SchemaError, match="column 'ROW_KIND' differs only in case"):
        OperatorHarness(GroupAggregate([count().alias("ROW_KIND")]), SCHEMA, "k")
