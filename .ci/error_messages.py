"""Every message of the project's errors, read from the code without running it.

Owns: `messages`. Invariant: each call of a class of `asyncstate.errors` in the source gives at least one message, or is
counted as one that cannot be read; text that only a running program knows is shown as `{name}`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncstate import errors

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("asyncstate", "operators")
CLASSES = {name for name, thing in vars(errors).items() if inspect.isclass(thing)}
_DEPTH_MAX = 6
_Function = ast.FunctionDef | ast.AsyncFunctionDef


IN_SQL = (
    "{source}: {problem}, in: {example}. Fix the source, or set malformed='drop' to leave such rows out; "
    "malformed='only' lists them"
)
"""The one message that the JVM makes: a SchemaError of asyncstate.spark.sources.malformed."""


@dataclass(frozen=True, order=True)
class Message:
    """What one error says: its class, the package or module that raises it, and its text."""

    error: str
    room: str
    text: str

    @property
    def has_words(self) -> bool:
        """Whether anything of the text is known before the program runs."""
        return any(len(part.partition("}")[2].strip(" :'\"(,)")) > 1 for part in ("}" + self.text).split("{"))


def messages() -> list[Message]:
    """All of them, sorted."""
    sources = {
        path: ast.parse(path.read_text("utf-8")) for name in PACKAGES for path in (ROOT / name).rglob("*.py")
    }
    functions = {
        function.name: function
        for tree in sources.values()
        for function in ast.walk(tree)
        if isinstance(function, _Function)
    }
    found = {Message("SchemaError", "asyncstate.spark", IN_SQL)}
    for path, tree in sources.items():
        for error, call, within in _calls(tree, None):
            texts = _texts(call.args[0], within, functions, 0) if call.args else ["{message}"]
            found.update(Message(error, _room(path), _tidy(text)) for text in texts)
    return sorted(message for message in found if message.has_words)


def _calls(node: ast.AST, within: _Function | None) -> Iterator[tuple[str, ast.Call, _Function | None]]:
    """Each call that makes an error: the error's class, the call, and the function around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            error = _error_of(child.func, within)
            if error is not None:
                yield error, child, within
        yield from _calls(child, child if isinstance(child, _Function) else within)


def _error_of(called: ast.expr, within: _Function | None) -> str | None:
    """The class that a call makes: named as it is, or a parameter whose default it is."""
    name = (
        called.id
        if isinstance(called, ast.Name)
        else called.attr
        if isinstance(called, ast.Attribute)
        else ""
    )
    if name in CLASSES:
        return name
    if within is None:
        return None
    arguments = [*within.args.posonlyargs, *within.args.args]
    defaults = [None] * (len(arguments) - len(within.args.defaults)) + within.args.defaults
    for argument, default in zip(
        [*arguments, *within.args.kwonlyargs], [*defaults, *within.args.kw_defaults], strict=True
    ):
        if argument.arg == name and isinstance(default, ast.Name) and default.id in CLASSES:
            return default.id
    return None


def _texts(
    value: ast.expr, within: _Function | None, functions: dict[str, _Function], depth: int
) -> list[str]:
    """What an expression may say, with what only a running program knows as `{name}`."""
    if depth > _DEPTH_MAX:
        return [_hole(value)]

    def again(part: ast.expr) -> list[str]:
        return _texts(part, within, functions, depth + 1)

    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part) for part in parts)]
        case ast.IfExp(body=yes, orelse=no):
            return again(yes) + again(no)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a, b in itertools.product(again(left), again(right))]
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.List(elts=[first, *_])]
        ):
            return again(first)
        case ast.Name(id=name) if within is not None:
            assigned = [text for said in _assigned(name, within) for text in again(said)]
            return assigned or [_hole(value)]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in functions:
            helper = functions[name]
            returned = [
                node.value for node in ast.walk(helper) if isinstance(node, ast.Return) and node.value
            ]
            return [text for said in returned for text in _texts(said, helper, functions, depth + 1)]
    return [_hole(value)]


def _assigned(name: str, within: _Function) -> Iterator[ast.expr]:
    for node in ast.walk(within):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            yield node.value


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return _hole(part.value if isinstance(part, ast.FormattedValue) else part)


def _hole(value: ast.expr) -> str:
    """`{name}`, by the nearest name in an expression."""
    return "{" + _name(value) + "}"


def _name(value: ast.AST) -> str:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(func=ast.Attribute(attr="join"), args=[only]) | ast.Starred(value=only):
            return _name(only)
        case ast.Call(func=ast.Name(id="map"), args=[_, only]) | ast.Call(args=[only]):
            return _name(only)
        case ast.Call(func=func):
            return _name(func)
        case ast.Subscript(value=inner) | ast.Await(value=inner):
            return _name(inner)
        case ast.BinOp(left=inner) | ast.BoolOp(values=[inner, *_]) | ast.IfExp(body=inner):
            return _name(inner)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return _name(first.iter)
    return "..."


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _room(path: Path) -> str:
    """The package, or the module where it is a file of its own, that a message comes from."""
    parts = path.relative_to(ROOT).with_suffix("").parts[:2]
    return ".".join(parts if parts[0] == "asyncstate" else ("asyncstate", *parts))
