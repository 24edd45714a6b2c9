"""How objects are displayed, in a line and in a notebook.

Owns: ``Constructed`` (objects that know their constructor arguments), ``call_text``, ``table``, ``time_text``,
``without_secrets``.
Invariant: nothing here can fail, runs code of the object beyond ``repr``, or is pickled with it.
A leaf: imports nothing of the project.
"""

from __future__ import annotations

import functools
import html
import inspect
import re
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

_CHARACTERS_MAX: Final = 120  # of one setting
_ROW_STYLE: Final = "text-align:left;font-family:monospace"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

HIDDEN: Final = "***"
"""The text shown instead of a credential."""
_SECRETS: Final = (
    (re.compile(r"(://[^\s/:@'\"]*):[^\s/@'\"]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"([?&][^=&#\s'\"]+)=(?!\{\d*\}(?:[&#\s'\"]|$))[^&#\s,'\"]+"), rf"\1={HIDDEN}"),
    (
        re.compile(
            r"""(?i)([\w.-]*(?:password|passwd|pwd|secret|token|credential|api_?key|access_?key)[\w.-]*["']?\s*[=:]\s*)
            (?!\*\*\*)("[^"]*"|'(?:[^'\\]|\\.)*'|[^\s,;&}]+)""",
            re.VERBOSE,
        ),
        rf"\1{HIDDEN}",
    ),
)

_given: weakref.WeakKeyDictionary[object, tuple[tuple[Any, ...], dict[str, Any]]] = (
    weakref.WeakKeyDictionary()
)
"""Constructor arguments. Not in the objects, so that they are neither pickled nor copied with them."""


class Constructed(ABCMeta):
    """Metaclass of objects whose constructor arguments ``made_with`` returns, as long as they live here."""

    if not TYPE_CHECKING:  # a type checker would accept any arguments

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            with suppress(Exception):  # an object without a hash, or with none yet, only shows less
                _given[made] = args, kwargs
            return made

        @property
        def __signature__(cls) -> inspect.Signature:
            """That of ``__init__``: ``help`` and notebooks would otherwise show that of the call above."""
            _self, *others = inspect.signature(cls.__init__).parameters.values()
            return inspect.Signature(others)


def made_with(made: object) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments with which ``made`` was constructed; None for a copy, or an object without a hash."""
    with suppress(Exception):
        return _given.get(made)
    return None


def constructor_text(made: object) -> str:
    """``made`` as the call that makes it; ``Name(...)`` if that is not known."""
    given = made_with(made)
    name = type(made).__name__
    return f"{name}(...)" if given is None else call_text(name, given[0], given[1])


def settings_of(made: object) -> list[tuple[str, str]]:
    """Name and text of each constructor argument of ``made``, defaults too; empty if they are not known."""
    given = made_with(made)
    if given is None:
        return []
    try:
        bound = inspect.signature(type(made)).bind(*given[0], **given[1])
    except (TypeError, ValueError):
        return [(str(number), value_text(value)) for number, value in enumerate(given[0])]
    bound.apply_defaults()
    return [(name, value_text(value)) for name, value in bound.arguments.items()]


def call_text(name: str, args: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> str:
    """A call as source code."""
    said = [value_text(value) for value in args]
    said += [f"{key}={value_text(value)}" for key, value in (named or {}).items()]
    return f"{name}({', '.join(said)})"


def value_text(value: object) -> str:
    """A setting in a few words: functions by their names, long texts cut off."""
    text = _text(value)
    return text if len(text) <= _CHARACTERS_MAX else f"{text[: _CHARACTERS_MAX - 1]}…"


def _text(value: object) -> str:
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        inside = ", ".join(map(value_text, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, functools.partial):  # its arguments may be credentials
        return f"{_text(value.func)}(...)"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    with suppress(Exception):
        return " ".join(repr(value).split())
    return f"<{type(value).__name__}>"


def without_secrets(text: str) -> str:
    """``text`` without the passwords and parameters of addresses, and without values called a password, a secret, a
    token or a key.

    >>> without_secrets("postgresql://me:secret@db/x?sslkey=a, password=b, https://svc/{0}?api_key=c&id={0}")
    'postgresql://me:***@db/x?sslkey=***, password=***, https://svc/{0}?api_key=***&id={0}'
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def time_text(microseconds: int | None, first: int, last: int) -> str:
    """A time since the epoch for people; ``first``: before any time, ``last``: after all times."""
    if microseconds is None or microseconds <= first:
        return "none yet"
    if microseconds >= last:
        return "the end of the input"
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(" ").removesuffix("+00:00")
    except OverflowError:
        return f"{microseconds} us"


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table for notebooks; all of its content is escaped."""
    head = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<p><b>{html.escape(title)}</b></p><table>{top}<tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f'<td style="{_ROW_STYLE}">{html.escape(str(value))}</td>'


def ignoring_errors(text: Callable[[], str], fallback: str) -> str:
    """The result of ``text``, or ``fallback`` on an error: a ``repr`` must not fail."""
    try:
        return text()
    except Exception:
        return fallback
