"""The relational methods of streams, kept up to date in a harness, against DuckDB after every micro-batch."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from asyncstate.dataflow import Apply, Dataflow, Stream
from asyncstate.dataflow.nodes import Times
from asyncstate.errors import AsyncStateError, JobError
from asyncstate.testing import PipelineHarness, PipelineSource
from operators import (
    GroupAggregate,
    WindowAggregate,
    asc,
    avg,
    count,
    cumulate,
    desc,
    hop,
    lag,
    max_,
    row_number,
    rows,
    session,
    sum_,
    tumble,
)
from tests.sql.features import changing_tables
from tests.sql.tables import Change, Tables, kept_right

CHAINS: dict[str, tuple[Callable[..., Stream], str]] = {
    "group": (
        lambda t: t.group_by("a").agg(count().alias("n"), s=sum_("b"), hi=max_("b"), m=avg("b")),
        "select a, count(*), sum(b), max(b), avg(b) from t group by a",
    ),
    "group as text": (
        lambda t: t.group_by("a").agg(n="count(*)", nb="count(b)", lo="min( b )", m="mean(b)", d="stddev(b)"),
        "select a, count(*), count(b), min(b), avg(b), stddev(b) from t group by a",
    ),
    "expressions": (
        lambda t: t.group_by("a % 2", third="c").agg(
            sum_("b * 2 + 1").alias("s"), big=count().where("b > 3"), mix="1 + sum(b * a) / count(*)"
        ),
        "select a % 2, c, sum(b * 2 + 1), count(*) filter (where b > 3), 1 + sum(b * a) / count(*) from t "
        "group by 1, 2",
    ),
    "filter and distinct": (
        lambda t: t.group_by("a").agg(
            n="count(DISTINCT b)", s="sum(b) FILTER (WHERE c = 'x' OR c = 'y)')", p="count(distinct b, c)"
        ),
        "select a, count(distinct b), sum(b) filter (where c = 'x'), "
        "count(distinct (b, c)) filter (where b is not null and c is not null) from t group by a",
    ),
    "lists": (
        lambda t: t.group_by("a").agg(cs="array_size(collect_set(c))", bs="array_size(collect_list(b))"),
        "select a, count(distinct c), count(b) from t group by a",
    ),
    "texts": (
        lambda t: t.group_by("a").agg(
            x="listagg(c, '-') WITHIN GROUP (ORDER BY b DESC, upper(c)) FILTER (WHERE b > 1)",
            y="string_agg(DISTINCT c) within group (order by c nulls last)",
            n="length(listagg(c, NULL))",
        ),
        "select a, string_agg(c, '-' order by b desc, c) filter (where b > 1), "
        "string_agg(distinct c, '' order by c), nullif(count(c), 0) from t group by a",
    ),
    "of two columns": (
        lambda t: (
            t.where("b IS NOT NULL")
            .group_by("a")
            .agg(p="percentile(b, 0.5)", m="median(b + 1)", x="max(b) - min(b)")
        ),
        "select a, quantile_cont(b, 0.5), median(b + 1), max(b) - min(b) from t where b is not null group by a",
    ),
    "all rows": (
        lambda t: t.group_by().agg(n=count(), s="sum(b)"),
        "select count(*), sum(b) from t",
    ),
    "the same column twice": (
        lambda t: t.group_by("a", "a AS again", third="c").agg(s="sum(b)"),
        "select a, a, c, sum(b) from t group by a, c",
    ),
    "having, twice": (
        lambda t: (
            t.group_by("a", "c").agg(s="sum(b)").where("s > 2").group_by("a").agg(n=count(), s="sum(s)")
        ),
        "select a, count(*), sum(s) from (select a, c, sum(b) as s from t group by all) where s > 2 group by a",
    ),
    "distinct": (lambda t: t.select("a", "c").distinct(), "select distinct a, c from t"),
    "values": (lambda t: t.group_by("a", up="upper(c)").agg(), "select distinct a, upper(c) from t"),
    "top": (
        lambda t: t.group_by("a", "b").agg(n=count()).top(3, by=["n", "a ASC", asc("b")]),
        "select a, b, count(*) from t group by a, b order by 3 desc, a asc nulls first, b asc nulls first limit 3",
    ),
    "top of each": (
        lambda t: (
            t.group_by("a", "b")
            .agg(n=count())
            .group_by("a")
            .top(2, by=["n * 10", "b NULLS LAST"], number="place")
        ),
        "select * from (select a, b, count(*) as n, row_number() over (partition by a order by n desc, b desc nulls "
        "last) as r from t group by a, b) where r <= 2",
    ),
    "top of expressions": (
        lambda t: t.select("a", "b").distinct().group_by("a % 2", k="b % 3", a="-a").top(1, by=["b", "a"]),
        "select -a, b, a % 2, b % 3 from (select distinct a, b from t) qualify row_number() over (partition by a % 2, "
        "b % 3, -a order by b desc nulls last, a desc nulls last) = 1",
    ),
    "over": (
        lambda t: t.over("a").with_columns(s="sum(b)", share="b * 1.0 / (1 + sum(b))", n=count()),
        "select a, b, c, sum(b) over p, b * 1.0 / (1 + sum(b) over p), count(*) over p from t "
        "window p as (partition by a)",
    ),
    "over in an order": (
        lambda t: (
            t.distinct()
            .over(["a", "c"], order_by="b DESC NULLS FIRST")
            .with_columns(
                before=lag("b"),
                place="rank()",
                s="sum(b)",
                first="first_value(b)",
                q="lag(b, 2, -1)",
                t="lag(c, 1, '(none)')",
            )
        ),
        "select a, b, c, lag(b) over p, rank() over p, sum(b) over p, first_value(b) over p, lag(b, 2, -1) over p, "
        "lag(c, 1, '(none)') over p from (select distinct * from t) "
        "window p as (partition by a, c order by b desc nulls first)",
    ),
    "over rows": (
        lambda t: (
            t.distinct()
            .over("a % 2", [desc("b"), "upper(c)", "a"], rows(2))
            .with_columns(s="sum(b)", n=row_number())
        ),
        "select a, b, c, sum(b) over (p rows 2 preceding), row_number() over p from (select distinct * from t) "
        "window p as (partition by a % 2 order by b desc nulls last, upper(c) nulls first, a nulls first)",
    ),
    "join": (
        lambda t, u: t.join(u.select("a", "d"), on="a"),
        "select t.a, b, c, d from t join u using (a)",
    ),
    "join of renamed": (
        lambda t, u: t.join(u.select("a AS ua", "d AS b"), on={"a": "ua", "b": "b"}, how="left"),
        "select t.a, t.b, c, u.a from t left join u on t.a = u.a and t.b = u.d",
    ),
    "join of both": (
        lambda t, u: (
            t.select("a", "b").distinct().join(u.group_by("a").agg(n=count()), on=["a"], how="full_outer")
        ),
        "select coalesce(t.a, u.a), b, n from (select distinct a, b from t) t full join "
        "(select a, count(*) as n from u group by a) u on t.a = u.a",
    ),
    "right join": (
        lambda t, u: t.group_by("a").agg(n=count()).join(u, on="a", how="right"),
        "select u.a, n, d, e from (select a, count(*) as n from t group by a) t right join u on t.a = u.a",
    ),
    "partners": (
        lambda t, u: t.join(u, on="a", how="left_semi").union(
            t.join(u, on={"a": "a", "c": "e"}, how="anti", uid="strangers")
        ),
        "select * from t where a in (select a from u) union all "
        "select * from t where not exists (select 1 from u where u.a = t.a and u.e = t.c)",
    ),
}


def pipeline(build: Callable[..., Stream]) -> Callable[..., None]:
    """The stream that is built, into a sink."""

    def made(**streams: Stream) -> None:
        build(**streams).to(print, name="out")

    return made


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_kept_right(name: str, async_enabled: bool) -> None:
    build, sql = CHAINS[name]
    tables = changing_tables(seed=5)
    assert kept_right(pipeline(build), tables, sql, sql, async_enabled=async_enabled) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["expressions", "over in an order", "join of both", "top of each"])
def test_a_chain_goes_on_after_restarts_with_more_partitions(name: str) -> None:
    build, sql = CHAINS[name]
    for seed in range(3):
        rng = random.Random(seed)
        assert kept_right(
            pipeline(build), changing_tables(seed), sql, sql, async_enabled=seed % 2 == 1, restarts=rng
        )


WINDOWS: dict[str, tuple[Callable[..., Stream], str]] = {
    "tumble": (
        lambda t: t.group_by("k").window(tumble("10 ms")).agg(n=count(), s="sum(v + 1)"),
        "select k, ms // 10 * 10, ms // 10 * 10 + 10, count(*), sum(v + 1) from t group by all",
    ),
    "hop": (
        lambda t: t.group_by("k").window(hop("20 ms", "10 ms")).agg(s="sum(v)"),
        "select k, w, w + 20, sum(v) from (select *, unnest([ms // 10 * 10 - 10, ms // 10 * 10]) as w from t) "
        "group by all",
    ),
    "cumulate": (
        lambda t: t.group_by(half="v % 2").window(cumulate("20 ms", "10 ms")).agg(s=sum_("v")),
        "select v % 2, ms // 20 * 20, e, sum(v) from (select *, unnest([ms // 20 * 20 + 10, ms // 20 * 20 + 20]) as e "
        "from t) where ms < e group by all",
    ),
    "all": (
        lambda t: t.group_by().window(tumble("10 ms")).agg(n="count(*)"),
        "select ms // 10 * 10, ms // 10 * 10 + 10, count(*) from t group by all",
    ),
    "session": (
        lambda t: t.group_by("k").window(session("5 ms")).agg(n=count()),
        "select k, min(ms), max(ms) + 5, count(*) from (select *, sum(gap) over (partition by k order by ms) as s from "
        "(select *, if(ms - lag(ms) over (partition by k order by ms) > 5, 1, 0) as gap from t)) group by k, s",
    ),
}


def timed(seed: int) -> Tables:
    """Insertions with a time in milliseconds; no two at once."""
    rng = random.Random(seed)
    made: list[list[Change]] = [[] for _ in range(4)]
    for number, at in enumerate(sorted(rng.sample(range(120), 40))):
        made[number // 10].append(("+I", (rng.choice("ab"), rng.randrange(9), at)))
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ms", pa.int64())])
    return Tables({"t": schema}, {"t": made}, insert_only=True)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_those_of_the_rows_times(name: str, async_enabled: bool) -> None:
    build, sql = WINDOWS[name]
    tables = timed(seed=len(name))
    source = PipelineSource("k string, v bigint, at timestamp", event_time="at", watermark_delay="1 ms")
    found: list[tuple[Any, ...]] = []
    with PipelineHarness(
        pipeline(lambda t: build(t).drop("window_time")), {"t": source}, async_enabled=async_enabled
    ) as harness:
        for batch in tables.changes["t"]:
            harness.push("t", [(k, v, at * 1000) for _, (k, v, at) in batch])
            found += harness.end_batch()["out"]
        assert found  # the watermark has passed some
        found += harness.finish()["out"]
    assert {kind for kind, *_ in found} == {"+I"}
    have = [
        tuple(value // 1000 if isinstance(value, int) and abs(value) > 999 else value for value in row)
        for _, *row in found
    ]
    assert sorted(have) == sorted(tables.answer(sql, 3))


ORDERS = PipelineSource(
    "id bigint, customer string, amount bigint, price double, at timestamp", changelog=True, primary_key="id"
)


def declared(build: Callable[[Stream], Any], source: PipelineSource = ORDERS) -> Any:
    """What ``build`` finds while the graph is declared."""
    found: list[Any] = []

    def made(orders: Stream) -> None:
        found.append(build(orders))
        orders.to(print, name="out")

    with PipelineHarness(made, {"orders": source}):
        return found[0]


def test_columns_are_known_before_anything_runs() -> None:
    def build(orders: Stream) -> None:
        assert dict(orders.columns) == dict(zip(ORDERS.schema.names, ORDERS.schema.types, strict=True))
        named = orders.with_columns(twice="amount * 2").drop("at").select("id", "twice", up="upper(customer)")
        assert dict(named.columns) == {"id": pa.int64(), "twice": pa.int64(), "up": pa.string()}
        both = named.union(named.where("id > 3"))
        assert both.columns == named.columns
        groups = both.group_by("up").agg(n=count(), s="sum(twice)")
        assert dict(groups.columns) == {"up": pa.string(), "n": pa.int64(), "s": pa.int64()}
        joined = groups.join(orders.select("id", "customer AS up"), on="up", how="left")
        assert list(joined.columns) == ["up", "n", "s", "id"]
        joined.to(print, name="joined")

    declared(build)


def test_columns_of_a_side_output() -> None:
    def build(orders: Stream) -> None:
        windows = orders.apply(
            WindowAggregate(tumble("1 minute"), [count()], late_output="late"), key="customer", uid="windows"
        )
        assert list(windows.columns) == ["customer", "window_start", "window_end", "window_time", "count"]
        late = windows.output("late")
        assert late.columns == orders.columns
        late.to(print, name="late")

    timed = PipelineSource("customer string, at timestamp", event_time="at", watermark_delay=0)
    declared(build, timed)


def test_columns_that_cannot_be_known_say_where_and_why() -> None:
    def build(orders: Stream) -> None:
        wrong = orders.select("id", "nothing").where("id > 2")
        with pytest.raises(JobError) as error:
            wrong.columns  # noqa: B018
        assert "the rows of 'where 1' are not known, because of an error upstream" in str(error.value)
        assert re.search(r"test_chain.py:\d+: select id, nothing: .*nothing", str(error.value))
        function = orders.transform(lambda df: df)
        with pytest.raises(JobError, match=r"transform.* needs Spark"):
            function.columns  # noqa: B018
        unknown = orders.apply(GroupAggregate([sum_("customer")]), key="id", uid="sums")
        with pytest.raises(JobError, match=r"operator 'sums': .*column 'customer'"):
            unknown.columns  # noqa: B018
        raise _SeenError

    with pytest.raises(_SeenError):
        PipelineHarness(build, {"orders": ORDERS})
    alone = Dataflow().add_source("alone", Times(), None)
    with pytest.raises(JobError, match=r"rows of .alone., since its graph is of no job"):
        alone.columns  # noqa: B018


class _SeenError(Exception):
    pass


def test_an_operator_gets_the_uid_of_where_it_is() -> None:
    def build(orders: Stream) -> list[str]:
        groups = orders.where("amount > 2").group_by("customer", day="date(at)").agg(n=count())
        best = groups.select("customer", "n").group_by("customer").top(3, by="n")
        mine = orders.group_by("customer").agg(n=count(), uid="mine")
        last = (
            best.over("customer").with_columns(s="sum(n)").distinct().top(2, by="s").join(mine, on="customer")
        )
        last.to(print, name="last")
        return [node.name for node in orders._flow.nodes if isinstance(node, Apply)]

    assert declared(build) == [
        "orders.group-customer-day",
        "orders.group-customer-day.top-customer",
        "mine",
        "orders.group-customer-day.top-customer.over-customer",
        "orders.group-customer-day.top-customer.over-customer.distinct",
        "orders.group-customer-day.top-customer.over-customer.distinct.top",
        "orders.group-customer-day.top-customer.over-customer.distinct.top.join-mine",
    ]


def test_modes_and_keys_are_those_of_the_operators() -> None:
    def build(orders: Stream) -> None:
        facts = orders._flow.facts_of
        groups = orders.group_by(day="date(at)", who="customer").agg(n=count(), m="sum(amount) / 2")
        assert facts(groups.node)[1].unique_keys == (("day", "who"),)
        numbered = orders.group_by("customer").top(1, by="amount")
        assert {("id",), ("customer",)} == set(facts(numbered.node)[1].unique_keys)
        assert facts(orders.over("customer").with_columns(n=count()).node)[1].unique_keys == (("id",),)
        right = numbered.join(groups, on={"customer": "who"}, how="right")
        assert right.node.operator.unique == ("join_key", None)  # type: ignore[attr-defined]
        whole = groups.select("who AS customer", "day").join(numbered, on="customer", how="left")
        assert facts(whole.node)[1].unique_keys == (("day", "customer"),)
        for one in (right, whole):
            one.to(print, name=one.node.name)

    declared(build)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda o: o.group_by("customer").agg(s="amount + 1"),
            r"s='amount \+ 1' has no aggregate function; there are any",
        ),
        (
            lambda o: o.group_by("customer").agg("sum(amount)"),
            r"'sum\(amount\)' is not an aggregate with a name",
        ),
        (lambda o: o.group_by("customer").agg(s=3), "3 is not an aggregate with a name"),
        (lambda o: o.group_by("customer").agg(s="sum(max(amount))"), r"max\(\) is inside another aggregate"),
        (lambda o: o.group_by("customer").agg(s="sum(amount"), "a parenthesis is not closed"),
        (
            lambda o: o.group_by("customer").agg(s="sum(amount) OVER (ORDER BY id)"),
            r"write over\(...\).with_columns",
        ),
        (
            lambda o: o.group_by("customer").agg(s="percentile(amount, price)"),
            "price has to be a literal here",
        ),
        (
            lambda o: o.group_by("customer").agg(s="percentile_disc(0.5) WITHIN GROUP (ORDER BY amount)"),
            r"only listagg\(\) and string_agg\(\) have WITHIN GROUP here",
        ),
        (lambda o: o.group_by("customer").agg(s="sum(amount, price)"), r"sum\(\) does not take 2 arguments"),
        (lambda o: o.group_by("customer").agg(count().alias("n"), n=count()), "there are two results 'n'"),
        (lambda o: o.group_by("customer", customer="id").agg(), "there are two columns 'customer'"),
        (
            lambda o: o.group_by("customer").agg(s="sum(rand() * amount)"),
            r"rand\(\) \* amount is another value each",
        ),
        (
            lambda o: o.group_by("customer").agg(s="max(amount) + uuid()"),
            r"\+ uuid\(\) is another value each time",
        ),
        (
            lambda o: o.group_by("current_date()").top(1, by="amount"),
            r"current_date\(\) is another value each",
        ),
        (lambda o: o.group_by("date 'Today'").top(1, by="amount"), "date 'Today' is another value each"),
        (lambda o: o.group_by(k="customer").agg(k="max(id)"), "there are two columns 'k'"),
        (lambda o: o.group_by().window(tumble("1 hour")).window(tumble("1 day")), "in windows already"),
        (lambda o: o.group_by(3).agg(), "3 is not a column; give its name"),
        (
            lambda o: o.group_by("customer").window(tumble("1 hour")).agg(n=count(), ttl="1 day"),
            "leave out ttl",
        ),
        (lambda o: o.group_by("customer").window(tumble("1 hour")).top(3, by="id"), "WindowRank"),
        (
            lambda o: o.over("customer").with_columns(n="row_number()"),
            r"row_number\(\) needs an order of the rows",
        ),
        (lambda o: o.top(3, by=7), "7 is not a column to order by"),
        (lambda o: o.top(0, by="id"), "n is 0"),
        (
            lambda o: o.group_by("id").agg(x="max(concat(customer, '  '))", y="max(concat(customer, ' '))"),
            "differ only in the spaces of a string",
        ),
        (
            lambda o: o.join(o, on="nothing"),
            r"there is no column 'nothing' in source 'orders'; the columns are id,",
        ),
        (lambda o: o.join(o, on=[]), "on is empty"),
        (lambda o: o.join(o, on="id", how="cross"), "how is 'cross'; choose inner"),
        (lambda o: o.join(o, "id"), r"join got 'id'; give on= and how="),
        (lambda o: o.join(o), "join got no columns"),
        (
            lambda o: (o.group_by("id").agg(n=count()), o.where("id > 3").group_by("id").agg(n=count())),
            r"its uid would be 'orders.group-id', which another operator has; .* by uid=",
        ),
        (lambda o: o.group_by("größe").agg(n=count()), "its uid would be .*; give uid="),
    ],
)
def test_what_cannot_be_right_is_refused_where_it_is_written(
    build: Callable[[Stream], Any], said: str
) -> None:
    with pytest.raises(JobError, match=said) as error:
        declared(build)
    assert re.match(r"test_chain.py:\d+: ", str(error.value))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda o: o.group_by("customer").agg(n=count()), "ChangelogNormalize"),
        (lambda o: o.over("customer").with_columns(n=count()), "ChangelogNormalize"),
        (lambda o: o.top(3, by="amount"), "ChangelogNormalize"),
    ],
)
def test_upserts_are_refused_as_by_the_operators(build: Callable[[Stream], Stream], said: str) -> None:
    upserts = PipelineSource("id bigint, customer string, amount bigint", mode="upsert", primary_key="id")
    with pytest.raises(JobError, match=said):
        PipelineHarness(lambda orders: build(orders).to(print), {"orders": upserts})


def test_values_that_change_may_be_computed_of_rows_that_are_never_retracted() -> None:
    def build(orders: Stream) -> None:
        orders.group_by(part="floor(rand() * 3)").agg(n=count()).to(print, name="parts")
        minutes = orders.group_by("customer").window(tumble("1 minute"))
        minutes.agg(n="count(*)", seen="count(*) + 0 * unix_seconds(now())").to(print, name="minutes")

    source = PipelineSource("customer string, at timestamp", event_time="at", watermark_delay=0)
    with PipelineHarness(build, {"orders": source}) as harness:
        assert set(harness.outputs) == {"parts", "minutes"}


def test_state_is_found_again_only_by_the_same_expression() -> None:
    """Under the same uid and the same names of results."""
    source = PipelineSource("k string, v bigint")

    def program(key: str, value: str, other: str) -> Callable[..., Any]:
        return lambda t: t.group_by(k=key).agg(s=f"sum({value})", n=f"sum({other})").to(print, name="out")

    with PipelineHarness(program("upper(k)", "v * 2", "v * 3"), {"t": source}) as harness:
        harness.push("t", [("a", 1)])
        assert harness.end_batch()["out"] == [("+I", "A", 2, 3)]
        harness.restart(program("upper(k)", "v * 2", " v * 3"))
        harness.push("t", [("a", 1)])
        assert harness.end_batch()["out"] == [("-U", "A", 2, 3), ("+U", "A", 4, 6)]
        for other in (program("lower(k)", "v * 2", "v * 3"), program("upper(k)", "v * 2", "v * 4")):
            with pytest.raises(AsyncStateError, match="t.group-k"):
                harness.restart(other)


def shown(
    capsys: pytest.CaptureFixture[str], build: Callable[[Stream], Any], source: PipelineSource
) -> list[str]:
    """What ``build`` prints."""
    declared(build, source)
    return capsys.readouterr().out.splitlines()


def test_show_prints_the_table_that_the_rows_come_to(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(1, "ann", 5), (2, "bob", None), (3, "a customer with a long name", 7), (2, "bob", None)]
    source = PipelineSource("id bigint, customer string, amount bigint", changelog=True)
    given = [dict(zip(["id", "customer", "amount"], row, strict=True)) | {"row_kind": "+I"} for row in rows]
    given[3]["row_kind"] = "-D"
    made = shown(capsys, lambda orders: orders.show({"orders": given}), source)
    assert made == [
        "+----+----------------------+--------+",
        "| id |             customer | amount |",
        "+----+----------------------+--------+",
        "|  1 |                  ann |      5 |",
        "|  3 | a customer with a l… |      7 |",
        "+----+----------------------+--------+",
        "2 rows; rows read: 4 of orders",
    ]
    made = shown(capsys, lambda orders: orders.show({"orders": given}, 3, changes=True), source)
    assert made[5:] == [
        "|       +I |  3 | a customer with a l… |      7 |",
        "+----------+----+----------------------+--------+",
        "only showing the first 3 rows",
        "4 changes; rows read: 4 of orders",
    ]


def test_show_closes_windows_and_keeps_the_newest_of_upserts(capsys: pytest.CaptureFixture[str]) -> None:
    source = PipelineSource("k string, at timestamp", event_time="at", watermark_delay="1 second")
    rows = [("a", 0), ("a", 1_000_000), ("b", 61_000_000)]

    def windows(t: Stream) -> None:
        made = t.group_by("k").window(tumble("1 minute")).agg(n=count())
        made.select("k", "window_end", "n").show({"orders": rows})
        made.to(print, name="windows")

    assert shown(capsys, windows, source)[3:] == [
        "| a | 1970-01-01 00:01:00 | 2 |",
        "| b | 1970-01-01 00:02:00 | 1 |",
        "+---+---------------------+---+",
        "2 rows; rows read: 3 of orders",
    ]
    upserts = PipelineSource(
        "k string, v bigint", mode="upsert", primary_key="k", initial=[("a", 1), ("b", 2)]
    )
    newest = pa.table({"k": ["b", "a"], "v": [3, None], "row_kind": ["+U", "-D"]})
    made = shown(capsys, lambda t: t.show({"orders": newest}), upserts)
    assert made[3:-2] == ["| b | 3 |"]
    assert made[-1] == "1 rows; rows read: 4 of orders"


def test_show_refuses_sources_without_rows() -> None:
    def build(orders: Stream) -> None:
        with pytest.raises(
            JobError, match=r"show got no rows of source 'orders'; .* show\(\{'orders': \[...\]\}\)"
        ):
            orders.where("id > 3").show()
        with pytest.raises(JobError, match=r"show got rows of 'order'; give"):
            orders.show({"order": [], "orders": []})
        with pytest.raises(AsyncStateError, match="row 0 of source 'orders'"):
            orders.show({"orders": [(1,)]})

    declared(build)
