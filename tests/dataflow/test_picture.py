"""A dataflow as text and as a picture: every node once, every arrow, the slowest operator framed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from asyncstate.dataflow import Dataflow, NodeMetrics, draw, explain
from asyncstate.dataflow.nodes import Times
from asyncstate.growth import WITH_KEYS
from operators import GroupAggregate, Join, count

SVG = "{http://www.w3.org/2000/svg}"


def flow() -> Dataflow:
    made = Dataflow()
    orders = made.add_source("orders", Times("ts", "5 seconds"), None)
    payments = made.add_source("payments", Times(sequence="lsn"), True)
    paid = orders.join(payments, Join("left"), key=("id", "order_id"), uid="paid")
    paid.where("a < 3 & b > '<'").apply(GroupAggregate([count()]), key="k", uid="totals").to(
        print, name="out"
    )
    return made


def test_every_node_and_arrow_is_drawn() -> None:
    made = flow()
    figures = {"paid": NodeMetrics(250_000, 240_000, 1.4, 3 << 20), "totals": NodeMetrics(9, 8, 0.3)}
    picture = ET.fromstring(draw(made, figures))
    titles = [group.findtext(f"{SVG}title") or "" for group in picture.iter(f"{SVG}g")]
    assert len(titles) == len(made.nodes) == 6
    assert titles[3].startswith("where 1: where a < 3 & b > '<'")
    assert all("test_picture.py:" in title for title in titles)
    arrows = [path for path in picture.iter(f"{SVG}path") if "marker-end" in path.attrib]
    assert len(arrows) == sum(len(node.inputs) for node in made.nodes)
    framed = [
        group for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}rect").attrib["stroke"] == "#dc2626"
    ]  # type: ignore[union-attr]
    assert [group.findtext(f"{SVG}text") for group in framed] == ["paid"]
    places = [tuple(rect.attrib[name] for name in "xy") for rect in picture.iter(f"{SVG}rect")]
    assert len(set(places)) == len(places)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"1,400 ms, 250,000 → 240,000 rows", "3.0 MiB of state"} <= set(texts)


def test_text_says_where_nodes_run() -> None:
    made = flow()
    places = {made.nodes[3]: "in the task of 'paid'"}
    states = {made.nodes[4]: ["accumulators (column)", "log (map)"]}
    figures = {"totals": NodeMetrics(9, 8, 0.3, spent_on="time: input 40%")}
    growth = {made.nodes[4]: WITH_KEYS}
    lines = explain(made, figures, places, states, growth=growth).splitlines()
    assert lines[0] == "orders    source, event time ts, watermark 5 seconds behind [read by Spark]"
    assert lines[3].endswith("of paid [in the task of 'paid']")
    assert "state: accumulators (column), log (map); grows with the number of keys]" in lines[4]
    picture = ET.fromstring(draw(made, None, places, states, growth))
    texts = {text.text for text in picture.iter(f"{SVG}text")}
    assert {"accumulators (column), log (map)", "grows with the number of keys"} <= texts
    assert lines[4].endswith("(300 ms, 9 → 8 rows, 0.0 MiB of state; time: input 40%)")
    assert lines[-1] == "2 exchanges per micro-batch"
    assert len(lines) == len(made.nodes) + 1


def test_nothing_is_drawn_of_nothing() -> None:
    assert ET.fromstring(draw(Dataflow())).tag == f"{SVG}svg"
    assert explain(Dataflow()) == "0 exchanges per micro-batch"
