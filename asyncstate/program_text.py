"""Parts of a program as texts that can be compared after a restart: parameters, conditions, functions.

Owns: ``said``, and ``function_text`` and ``object_text`` for the user's own functions and objects.
Invariant: equal programs give equal texts in every process; formatting and comments do not count. (Another version of
Python may write the code of a function differently.)
A leaf: imports nothing of the project.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import pyarrow.compute as pc

_SHOWN_MAX: Final = 160  # characters of a function's code; longer code is shown as a digest
_PLAIN: Final = (type(None), bool, int, float, str, bytes)
_SHOWN: Final = (*_PLAIN, timedelta, date, Decimal)


def said(value: object) -> str:
    """A parameter as a text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, pc.Expression):
        return str(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {said(one)}" for name, one in sorted(value.items()))
    if isinstance(value, list | tuple):
        return ", ".join(map(said, value)) or "nothing"
    text = getattr(value, "text", None)
    if isinstance(text, str):
        return text
    if isinstance(value, _SHOWN):
        return repr(value)
    return function_text(value) if callable(value) else object_text(value)


def function_text(function: Any) -> str:
    """A function by its name and its code, with the plain values that it uses from its surroundings.

    Not included: the code of functions that it calls, values that are not plain, and code without source (of C
    functions, or typed into an interpreter that keeps none).
    """
    if isinstance(function, partial):
        given = [
            *map(said, function.args),
            *(f"{name}={said(one)}" for name, one in function.keywords.items()),
        ]
        return f"{function_text(function.func)} with {', '.join(given)}"
    if isinstance(function, MethodType):
        return f"{function_text(function.__func__)} of {object_text(function.__self__)}"
    if isinstance(function, FunctionType):
        values = [f"{name}={said(one)}" for name, one in sorted(_values_around(function).items())]
        code = function.__code__
        text = _code_text(code.co_filename, code, function.__qualname__)
        return text + (f" with {', '.join(values)}" if values else "")
    if isinstance(function, type) or hasattr(function, "__qualname__"):
        return str(function.__qualname__)
    return object_text(function)


def object_text(made: object) -> str:
    """An object by its class and its plain attributes."""
    kept = getattr(made, "__dict__", {})
    values = [
        f"{name}={said(value)}"
        for name, value in sorted(kept.items())
        if isinstance(value, _PLAIN)
        or (isinstance(value, tuple) and all(isinstance(one, _PLAIN) for one in value))
    ]
    return f"{type(made).__qualname__}({', '.join(values)})"


@functools.lru_cache(
    maxsize=1024
)  # called by the driver in every micro-batch, and the whole file has to be parsed
def _code_text(file: str, code: CodeType, name: str) -> str:
    node = _node_of(file, code)
    if node is None:
        return name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node.decorator_list = []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    text = " ".join(ast.unparse(node).split())
    if isinstance(node, ast.Lambda) and len(text) <= _SHOWN_MAX:
        return text
    return f"{name} (code {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _node_of(file: str, code: CodeType) -> ast.AST | None:
    """The definition of ``code`` in its source; None if it cannot be determined."""
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [node for node in ast.walk(tree) if _defines(node, code)]
    return found[0] if len(found) == 1 else _by_code(found, code)


def _defines(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        return node.name == code.co_name and first == code.co_firstlineno
    return False


def _by_code(found: list[ast.AST], code: CodeType) -> ast.AST | None:
    """Of several lambdas in a line the one whose body is at the position in the code object."""
    places = {(line, column) for line, _, column, _ in code.co_positions() if line is not None}
    inside = [
        node
        for node in found
        if isinstance(node, ast.Lambda) and (node.body.lineno, node.body.col_offset) in places
    ]
    return inside[0] if len(inside) == 1 else None


def _values_around(function: FunctionType) -> dict[str, Any]:
    """The plain values that a function uses from its enclosing scope and from its module."""
    found: dict[str, Any] = {}
    for name in _names(function.__code__):
        value = function.__globals__.get(name, found)
        if isinstance(value, _PLAIN):
            found[name] = value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if isinstance(value, _PLAIN):
            found[name] = value
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
