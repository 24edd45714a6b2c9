"""A dataflow as text and as a picture.

Owns: ``explain``, ``draw`` and ``NodeMetrics``.
Invariant: both show every node once, and every edge.
Must not import Spark.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncstate.changelog import Changelog
from asyncstate.dataflow.graph import Dataflow
from asyncstate.dataflow.nodes import Apply, Node, Sink, Source
from asyncstate.growth import StateGrowth

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 220, 90, 46, 18, 12
_CHARACTERS: Final = 34  # of a line in a box
_EXCHANGE: Final = "an exchange"
_MIB: Final = 1 << 20
_FILLS: Final = {Source: "#dbeafe", Apply: "#dcfce7", Sink: "#fef3c7"}


class NodeMetrics(NamedTuple):
    """Metrics of an operator in the last micro-batch: rows, seconds including what Spark computes upstream of it, the
    size of its state, and what most of the time was spent on (empty: on its own computation, evenly spread)."""

    rows_in: int
    rows_out: int
    seconds: float
    state_bytes: int = 0
    spent_on: str = ""
    in_driver: bool = False
    """Whether its tasks ran in the driver's process."""

    @property
    def text(self) -> str:
        """The metrics in one line."""
        place = " in the driver" if self.in_driver else ""
        return f"{self.seconds * 1e3:,.0f} ms{place}, {self.rows_in:,} → {self.rows_out:,} rows"

    @property
    def state_text(self) -> str:
        """The size of its state."""
        return f"{self.state_bytes / _MIB:,.1f} MiB of state"


def explain(
    flow: Dataflow,
    metrics: Mapping[str, NodeMetrics] | None = None,
    places: Mapping[Node, str] | None = None,
    states: Mapping[Node, Sequence[str]] | None = None,
    changes: Mapping[Node, Changelog] | None = None,
    waits: str | None = None,
    growth: Mapping[Node, StateGrowth] | None = None,
) -> str:
    """One line per node in the order of declaration: its inputs, its changelog properties, where it runs, its state and
    how that grows. ``places``: where nodes run that do not run in their kind's usual place.
    ``waits``: what the watermark waits for."""
    metrics, places, states, changes = metrics or {}, places or {}, states or {}, changes or {}
    growth = growth or {}
    width = max((len(node.name) for node in flow.nodes), default=0)
    lines = [
        f"{node.name:<{width}}  {_said(node, _runs(node, places, states, growth), metrics, changes.get(node))}"
        for node in flow.nodes
    ]
    stages = sum(_EXCHANGE in _runs(node, places) for node in flow.nodes)
    lines.append(f"{stages} {'exchange' if stages == 1 else 'exchanges'} per micro-batch")
    return "\n".join([*lines, *([waits] if waits else [])])


def _said(node: Node, runs: str, metrics: Mapping[str, NodeMetrics], changes: Changelog | None) -> str:
    said = [node.text]
    if node.inputs:
        said.append(f"of {', '.join(one.name for one in node.inputs)}")
    if changes is not None and not isinstance(node, Sink):
        said.append(f"gives {changes.text}")
    said.append(f"[{runs}]")
    if node.name in metrics and isinstance(node, Apply):
        one = metrics[node.name]
        said.append(f"({one.text}, {one.state_text}{'; ' if one.spent_on else ''}{one.spent_on})")
    return " ".join(said)


def _runs(
    node: Node,
    places: Mapping[Node, str],
    states: Mapping[Node, Sequence[str]] | None = None,
    growth: Mapping[Node, StateGrowth] | None = None,
) -> str:
    """Where the node runs, its state, and how that grows."""
    kept = f": {', '.join(states[node])}" if states and states.get(node) else ""
    grows = f"; {growth[node].text}" if growth and node in growth else ""
    return (places.get(node) or _usually(node)) + kept + grows


def _usually(node: Node) -> str:
    if isinstance(node, Source):
        return "read by Spark"
    if isinstance(node, Sink):
        return "written by a call on the driver"
    if not isinstance(node, Apply):
        return "in Spark's plan of the reader"
    return (
        "no exchange, no state" if node.operator.stateless else f"{_EXCHANGE}, one task per partition, state"
    )


def draw(
    flow: Dataflow,
    metrics: Mapping[str, NodeMetrics] | None = None,
    places: Mapping[Node, str] | None = None,
    states: Mapping[Node, Sequence[str]] | None = None,
    growth: Mapping[Node, StateGrowth] | None = None,
) -> str:
    """Draw an SVG: boxes from left to right with arrows between them; the slowest operator has a red frame."""
    metrics, places, states = metrics or {}, places or {}, states or {}
    corners = _places(flow)
    slowest = max(metrics, key=lambda name: metrics[name].seconds, default=None)
    columns = max((column for column, _ in corners.values()), default=0) + 1
    rows = max((row for _, row in corners.values()), default=0) + 1
    width = 2 * _MARGIN + columns * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + rows * (_HEIGHT + _GAP_Y) - _GAP_Y
    parts = [_arrow(corners[one], corners[node]) for node in flow.nodes for one in node.inputs]
    parts += [
        _box(
            node,
            corners[node],
            metrics.get(node.name) if isinstance(node, Apply) else None,
            _runs(node, places, states, growth),
            node.name == slowest,
        )
        for node in flow.nodes
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
        '<defs><marker id="end" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#64748b"/></marker></defs>' + "".join(parts) + "</svg>"
    )


def _places(flow: Dataflow) -> dict[Node, tuple[int, int]]:
    """Column (the longest path from a source) and row of each node."""
    columns: dict[Node, int] = {}
    taken: dict[int, int] = {}
    places: dict[Node, tuple[int, int]] = {}
    for node in flow.nodes:
        column = columns[node] = 1 + max((columns[one] for one in node.inputs), default=-1)
        wanted = places[node.inputs[0]][1] if node.inputs else 0
        row = max(wanted, taken.get(column, 0))
        taken[column] = row + 1
        places[node] = column, row
    return places


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    column, row = place
    return _MARGIN + column * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y)


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = _corner(start), _corner(end)
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    middle = (x1 + x2) // 2
    return (
        f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" stroke="#64748b" '
        'marker-end="url(#end)"/>'
    )


def _box(node: Node, place: tuple[int, int], metrics: NodeMetrics | None, runs: str, is_slowest: bool) -> str:
    x, y = _corner(place)
    fill = next((color for kind, color in _FILLS.items() if isinstance(node, kind)), "#f1f5f9")
    stroke = 'stroke="#dc2626" stroke-width="2"' if is_slowest else 'stroke="#94a3b8"'
    where, _, grows = runs.partition("; ")
    where, _, kept = where.partition(": ")
    known = [*([where, kept] if metrics is None else [metrics.text, metrics.state_text]), grows]
    lines = [node.name, node.text, *known]
    texts = "".join(
        _text(x + 8, y + 17 + 16 * number, line, number == 0) for number, line in enumerate(lines)
    )
    full = html.escape(f"{node.name}: {node.text} [{runs}] ({node.place})")
    return (
        f'<g><title>{full}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" '
        f"{stroke}/>{texts}</g>"
    )


def _text(x: int, y: int, line: str, is_bold: bool) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x}" y="{y}"{weight} fill="#0f172a">{html.escape(_short(line))}</text>'


def _short(line: str) -> str:
    return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1]}…"
