"""Writes the pages of the API reference: every public name once, on the page of the module that defines it.

Owns: `docs/api/`, which each build makes again and git ignores. Invariant: each name of the `__all__` of a module below
is on exactly one page, under the shortest path that it can be imported by; one that no page claims is on the module's
last page, so that a new name needs no entry here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import sys
import types
import typing
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer


@dataclass(frozen=True)
class Page:
    """A page of the reference: its file and title, where its names are imported from, its guide.

    ``defined_in`` are the modules that define them, ``pattern`` is one that they have, ``first`` come first.
    ``besides`` are names with a path of their own: types of signatures on the page.
    """

    file: str
    title: str
    module: str
    guide: str
    defined_in: tuple[str, ...] = ("",)
    names: tuple[str, ...] = ()
    pattern: str = ""
    first: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    members: bool = True


DOCS = Path(__file__).resolve().parents[1]
ASYNCSTATE = "asyncstate"
OPERATORS = "asyncstate.operators"
FAMILIES = {
    "aggregate": "Aggregates",
    "window": "Windows",
    "join": "Joins and lookups",
    "over": "Frames of rows: OVER",
    "rank": "Rankings",
    "sort": "Sorting",
    "upsert": "One row per key",
    "process": "What runs functions",
}
"""Titles of the folders of `operators/`; one that is not here has a page under its own name."""


def _family(folder: str) -> Page:
    """The page of a folder of `operators/`."""
    guide = f"operators/{folder}" if (DOCS / "operators" / f"{folder}.md").exists() else "functions"
    defined_in = (f"operators.{folder}", *(["operators.core.sort_orders"] if folder == "rank" else []))
    title = FAMILIES.get(folder, folder.capitalize())
    return Page(f"operators-{folder}", title, OPERATORS, guide, defined_in, members=False)


def _families() -> list[Page]:
    folders = [path.parent.name for path in sorted((DOCS.parent / "operators").glob("*/__init__.py"))]
    return [_family(folder) for folder in dict.fromkeys((*FAMILIES, *folders)) if folder != "core"]


PAGES = (
    Page(
        "operator",
        "Operators of your own",
        ASYNCSTATE,
        "writing-operators",
        ("asyncstate.operator", "asyncstate.specs", "asyncstate.row", "asyncstate.changelog"),
        pattern="^(?!.*Table)",
        first=("RecordOperator", "BundleOperator", "OperatorContext", "RecordContext", "BundleContext"),
        besides=(
            *(f"asyncstate.operator.{name}" for name in ("Operator", "Timers", "Counter", "StateDescriptor")),
            "asyncstate.codec.KeyBatch",
        ),
    ),
    Page(
        "state",
        "State",
        ASYNCSTATE,
        "state",
        ("asyncstate.state",),
        pattern="^(?!.*(Column|View))",
        first=tuple(
            f"{kind}State{part}"
            for kind in ("Value", "List", "Map", "Reducing", "Aggregating")
            for part in ("", "Descriptor")
        ),
    ),
    Page("state-views", "Views of state", ASYNCSTATE, "state", ("asyncstate.state",), pattern="View"),
    Page(
        "state-columns",
        "State of columns",
        ASYNCSTATE,
        "writing-operators",
        ("asyncstate.state",),
        besides=tuple(
            f"asyncstate.state.{name}"
            for name in ("Columns", "ListColumns", "MapEntries", "TimeRange", "MapTimeRange")
        ),
    ),
    Page("futures", "Futures", ASYNCSTATE, "writing-operators", ("asyncstate.futures",)),
    Page(
        "functions",
        "Functions of rows",
        ASYNCSTATE,
        "functions",
        ("asyncstate.functions.process",),
        first=("KeyedProcessFunction", "KeyedCoProcessFunction", "KeyedBroadcastProcessFunction"),
    ),
    Page(
        "windows",
        "Triggers, evictors, assigners",
        ASYNCSTATE,
        "functions",
        ("asyncstate.functions.window_functions",),
        besides=("asyncstate.functions.TimedRow",),
    ),
    Page(
        "tables",
        "Functions of tables",
        ASYNCSTATE,
        "table-functions",
        ("asyncstate.functions.table_functions", "asyncstate.operator"),
    ),
    Page("aggregates", "Functions of values", "asyncstate.functions", "aggregates"),
    Page("config", "Configuration", ASYNCSTATE, "configuration", ("asyncstate.config",)),
    Page("errors", "Errors", "asyncstate.errors", "errors"),
    Page("asyncstate", "Other names of asyncstate", ASYNCSTATE, "writing-operators"),
    *_families(),
    Page("operators-more", "Other operators", OPERATORS, "operators/README", members=False),
    Page(
        "spark",
        "Jobs on Spark",
        "asyncstate.spark",
        "dataflow",
        first=("StreamingJob", "MicroBatch", "apply_batch", "build_session"),
    ),
    Page(
        "stream",
        "Streams of a job",
        "asyncstate.dataflow",
        "dataflow",
        names=("Stream",),
        besides=("asyncstate.relational.Grouped", "asyncstate.relational.Over"),
    ),
    Page("sources", "Sources", "asyncstate.spark.sources", "sources"),
    Page(
        "kafka",
        "Topics of Kafka",
        "asyncstate.spark.kafka",
        "sources",
        first=("read_kafka", "Json", "Debezium"),
    ),
    Page("sinks", "Sinks", "asyncstate.spark.sinks", "sinks"),
    Page("lookups", "Places to look up", "asyncstate.lookups", "operators/lookup"),
    Page("sql", "Statements in tests", "asyncstate.sql", "sql", names=("sql_pipeline",)),
    Page("testing", "Testing", "asyncstate.testing", "testing", first=("OperatorHarness", "PipelineHarness")),
    Page(
        "inspection",
        "Looking at state",
        "asyncstate.offline.inspection",
        "inspecting",
        names=("Inspection", "read_partition"),
    ),
)

ALIASES = {
    "Keys": "asyncstate.runtime.declarations.declared_inputs",
    "Delay": "asyncstate.runtime.declarations.declared_inputs",
    "SequenceBy": "asyncstate.runtime.declarations.declared_inputs",
    "OrderBy": "operators.core.sort_orders",
    "Ordering": "asyncstate.relational.chain",
    "Window": "asyncstate.relational.chain",
    "Ttl": "asyncstate.state.expiring.ttl",
    "Duration": "asyncstate.durations",
    "Seconds": "asyncstate.durations",
    "SchemaLike": "asyncstate.codec.ddl",
    "TypeLike": "asyncstate.codec.ddl",
    "ArrowFunction": "asyncstate.dataflow.nodes",
    "ConditionLike": "operators.core.condition",
    "TimeDomain": "operators.core.operator_checks",
    "OrderTime": "asyncstate.specs",
    "OnProgress": "asyncstate.driver.progress",
    "OperatorProgress": "asyncstate.driver.progress",
    "BatchFunction": "asyncstate.spark.job",
}
"""Names of types that signatures use, and the modules whose texts explain them. They have a page of their own."""

TYPES = """\
Types of arguments
==================

Names that the signatures use for what an argument may be. They are not imported: give a value of such a type.

"""

MADE_BY_US = re.compile(
    r"asyncstate\.state\.\w+\.\w+State|StateFuture|StateIterator|MicroBatch|Stream$|Grouped$|Over$"
)
"""Classes that a user gets and does not make: their constructors say nothing."""

INDEX = """\
API reference
=============

Every public name, with what it takes, gives and raises. The guides say when to use what.

.. list-table::
   :header-rows: 1

   * - page
     - names

"""


def collected() -> Iterator[tuple[Page, dict[str, Any]]]:
    """Each page with its names, as they are imported, and what they name."""
    seen: list[Any] = []
    for page in PAGES:
        module = importlib.import_module(page.module)
        named = page.names or getattr(module, "__all__", None) or _classes_of(module)
        names = [*page.first, *(name for name in named if name not in page.first)]
        found = {}
        for path, thing in _named(page, module, names):
            if not any(thing is other for other in seen):
                seen.append(thing)
                found[path] = thing
        if found:
            yield page, found


def _named(page: Page, module: types.ModuleType, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        thing = getattr(module, name)
        if not _is_of(thing, page) or not re.search(page.pattern, name):
            continue
        if isinstance(thing, types.ModuleType):
            functions = inspect.getmembers(thing, inspect.isfunction)
            own = [function for function in functions if function[1].__module__ == thing.__name__]
            yield from ((f"{page.module}.{name}.{own_name}", function) for own_name, function in own)
        else:
            yield f"{page.module}.{name}", thing
    for path in page.besides:
        home, _, name = path.rpartition(".")
        yield path, getattr(importlib.import_module(home), name)


def _classes_of(module: types.ModuleType) -> list[str]:
    return [name for name, thing in vars(module).items() if inspect.isclass(thing)]


def _is_of(thing: Any, page: Page) -> bool:
    home = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
    return any(not part or home == part or home.startswith(f"{part}.") for part in page.defined_in)


def directive(path: str, thing: Any, members: Iterable[str], base: str | None) -> str:
    """The autodoc directive of one name; ``base`` is where a class has the rest of its members from."""
    if inspect.isclass(thing):
        shown = ", ".join(members)
        also = f"   Has all that :py:obj:`{base.rpartition('.')[2]} <{base}>` has.\n\n" if base else ""
        members_line = f"   :members: {shown}\n" if shown else ""
        return f".. autoclass:: {path}\n{members_line}\n{also}{_fields(thing)}"
    if callable(thing) and typing.get_origin(thing) is None:
        return f".. autofunction:: {path}\n\n"
    return f".. py:data:: {path}\n\n   {_doc_of_data(path)}\n\n"


def _doc_of_data(path: str) -> str:
    """The text below an assignment, in whichever module of the package the name is assigned."""
    package, _, name = path.rpartition(".")
    for module in [package, *(module for module in sys.modules if module.startswith(f"{package}."))]:
        doc = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
        if doc is not None:
            return " ".join(doc)
    return ""


def types_page() -> str:
    """The page of ``ALIASES``: what each means, as its assignment says, and the text below that."""
    text = TYPES
    for name, module in ALIASES.items():
        assigned = _assigned(module)
        doc = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name), [])
        meaning = ast.unparse(_Spelled(assigned).visit(assigned[name]))
        text += f".. py:type:: {name}\n   :canonical: {meaning}\n\n"
        text += "".join(f"   {line}\n" for line in doc) + "\n"
    return text


def _assigned(module: str) -> dict[str, ast.expr]:
    """What a module assigns to names, by name."""
    tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text("utf-8"))
    found = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            found[target.id] = value
    return found


class _Spelled(ast.NodeTransformer):
    """Writes out names of types that have no entry of their own."""

    def __init__(self, assigned: dict[str, ast.expr]) -> None:
        self._assigned = assigned

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._assigned.get(node.id)
        is_type = isinstance(value, ast.BinOp | ast.Subscript) and node.id not in ALIASES
        return self.visit(value) if is_type and value is not None else node


def _fields(thing: Any) -> str:
    """The keys of a dict that has a class, which autodoc does not show."""
    if not typing.is_typeddict(thing):
        return ""
    return "".join(
        f"   .. py:attribute:: {name}\n      :no-index:\n      :type: {getattr(hint, '__forward_arg__', hint)}\n\n"
        for name, hint in thing.__annotations__.items()
    )


def _bases(thing: Any) -> tuple[type, ...]:
    return thing.__mro__[1:] if inspect.isclass(thing) else ()


def _members(thing: Any, public: Container[type]) -> Iterator[str]:
    """Documented attributes of a class and of those of its bases that have no entry of their own."""
    if not inspect.isclass(thing):
        return
    seen = set()
    for base in (thing, *_bases(thing)):
        if not base.__module__.startswith(("asyncstate.", "operators.")) or (
            base is not thing and base in public
        ):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_") and name not in seen and inspect.getdoc(value):
                seen.add(name)
                yield name


def write(folder: Path) -> None:
    """All pages, and the index that lists them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = list(collected())
    public = {thing: path for _, things in found for path, thing in things.items() if inspect.isclass(thing)}
    index = INDEX
    for page, things in found:
        text = f"{page.title}\n{'=' * len(page.title)}\n\nFrom ``{page.module}``; the guide: :doc:`/{page.guide}`.\n\n"
        for path, thing in things.items():
            members = _members(thing, public) if page.members else ()
            base = (
                next((public[base] for base in _bases(thing) if base in public), None)
                if page.members
                else None
            )
            text += directive(path, thing, members, base)
        (folder / f"{page.file}.rst").write_text(text, "utf-8")
        names = ", ".join(f":py:obj:`{path.rpartition('.')[2]} <{path}>`" for path in things)
        index += f"   * - :doc:`{page.title} <{page.file}>`\n     - {names}\n"
    (folder / "types.rst").write_text(types_page(), "utf-8")
    index += f"   * - :doc:`Types of arguments <types>`\n     - {', '.join(f':py:obj:`{name}`' for name in ALIASES)}\n"
    files = [*(page.file for page, _ in found), "types"]
    index += "\n.. toctree::\n   :hidden:\n\n" + "".join(f"   {file}\n" for file in files)
    (folder / "index.rst").write_text(index, "utf-8")


def _is_made_by_us(what: str, thing: Any) -> bool:
    if what != "class":
        return False
    path = f"{thing.__module__}.{thing.__qualname__}"
    return bool(
        getattr(thing, "_is_protocol", False) or typing.is_typeddict(thing) or MADE_BY_US.search(path)
    )


def _shown_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """No signature for classes that are not made by their users; without arguments that only tests give.

    The list of arguments below a signature has the same: Sphinx has collected it under the object's name before this.
    """
    listed = app.env.current_document.autodoc_annotations.get(name, {})
    if listed.get("return") == "None":
        del listed["return"]
    if _is_made_by_us(what, thing):
        listed.clear()
        return None if signature is None else ("", None)
    for hidden in [argument for argument in listed if argument.startswith("_")]:
        del listed[hidden]
    return None if signature is None else (_without_hooks(signature), returns)


def _without_hooks(signature: str) -> str:
    """A signature without the arguments of tests, whose names begin with an underscore.

    >>> _without_hooks("(spark, *, name='a', _clock=None)")
    "(spark, *, name='a')"
    """
    if " _" not in signature and "(_" not in signature:
        return signature
    try:
        function = ast.parse(f"def f{signature}: pass").body[0]
    except SyntaxError:  # a default that has no literal
        return signature
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    kept = [
        pair
        for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if not pair[0].arg.startswith("_")
    ]
    given.kwonlyargs, given.kw_defaults = [argument for argument, _ in kept], [default for _, default in kept]
    return f"({ast.unparse(given)})"


def setup(app: Sphinx) -> dict[str, bool]:
    """Before Sphinx looks for sources, so that it finds the pages."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "api"))
    app.connect("autodoc-process-signature", _shown_signature, priority=900)  # after the list of arguments
    return {"parallel_read_safe": True, "parallel_write_safe": True}
