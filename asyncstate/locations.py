"""Checkpoint locations: distinguish paths from URIs, and redact credentials for logs.

Owns: ``is_uri``, ``local_path``, ``absolute``, ``redact`` and ``redact_in``. Invariant: the result of ``redact`` may be
shown in a log, an error or a report. Must not import anything of the project except errors.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from asyncstate.errors import ConfigurationError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SCHEME_ALONE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
_NO_SLASH = re.compile(r"(s3[an]?|gs|gcs|hdfs|viewfs|abfss?|file):(?!/)", re.IGNORECASE)
_BEHIND_PATH = re.compile(r"[?#]")
_OPTIONS = re.compile(r"\?[\w.-]+=[^&#]*(&[\w.-]+=[^&#]*)*")
_PORT = re.compile(r":\d+$")
_UNESCAPED = re.compile(r"[:/?#@]")
_PIECE_MIN = 3  # shorter pieces reveal nothing, and occur in other words
_MASK = "***"
# Options of a URI that define where it points. Any other may be a secret (a token, a key) and is not shown.
_SHOWN = ("allow_bucket_creation", "allow_delayed_open", "endpoint_override", "region", "scheme")


def is_uri(place: str) -> bool:
    """Whether it is a URI other than ``file:``, and not a path."""
    return _SCHEME.match(place) is not None and not place.lower().startswith("file:")


def local_path(place: str) -> str:
    """The path that a path or a ``file:`` URI names. Raises ConfigurationError for a file on another host, for a URI
    that lacks its slashes, and for ``~``, which is another folder on each machine and for each user."""
    if place.startswith("~"):
        raise ConfigurationError(
            "the checkpoint's location begins with ~, which is not expanded; write the full path, or ./ in front if "
            "that is the folder's name"
        )
    if scheme := _NO_SLASH.match(place):
        raise ConfigurationError(
            f"the checkpoint's location begins with {scheme[0]} and no slash; write {scheme[0]}//, or ./ in front if "
            "that is the folder's name"
        )
    if not place.lower().startswith("file:/"):
        return place
    try:
        parts = urlsplit(place)
    except ValueError:
        raise ConfigurationError("a file: URI cannot be read; write file:///path") from None
    if parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"a file: URI names a folder on the host {parts.netloc.rpartition('@')[2]!r}; write file:///path"
        )
    return unquote(parts.path)


def absolute(place: str) -> str:
    """``place`` as a process in another folder finds it: a relative path becomes an absolute one."""
    if place.startswith("~") or _SCHEME_ALONE.match(place):
        return place
    return os.path.abspath(place)


def redact(place: str) -> str:
    """The location as it may be shown: no user information, no values of options that may be secret.

    If a URI is not well formed, because a secret in it has a character that had to be escaped, the result may show less
    than it could: text before an ``@`` is treated as user information where that is possible.
    """
    parts = _split(place)
    if parts is None:
        return place
    user = f"{_MASK}@" if parts.user else ""
    options = [(key, _shown_option(key, value)) for key, value in parts.options]
    query = f"?{urlencode(options, safe='*:/')}" if options else ""
    return f"{parts.scheme}{user}{parts.path}{query}"


def redact_in(text: str, place: str) -> str:
    """``text`` without the parts of ``place`` that ``redact`` removes, for errors of libraries that repeat it."""
    parts = _split(place)
    if parts is None:
        return text
    text = text.replace(place, redact(place))
    secrets = [parts.user, *parts.user.split(":", 1)]
    secrets += [piece for piece in _UNESCAPED.split(parts.user) if len(piece) >= _PIECE_MIN]
    secrets += [value for key, value in parts.options if key not in _SHOWN]
    for secret in sorted({form for s in secrets for form in (s, unquote(s)) if s}, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


class _Parts(NamedTuple):
    """``scheme`` with its slashes; ``user`` without its ``@``; ``path`` with host and port."""

    scheme: str
    user: str
    path: str
    options: list[tuple[str, str]]


def _shown_option(key: str, value: str) -> str:
    return redact(value) if key in _SHOWN else _MASK


def _split(place: str) -> _Parts | None:
    """The parts of a URI, even of one that libraries refuse to split."""
    if not is_uri(place) or (start := _START.match(place)) is None:
        return None
    rest = place[start.end() :]
    end = _end_of_user(rest)
    user, rest = (rest[:end], rest[end + 1 :]) if end >= 0 else ("", rest)
    before_fragment = rest.partition("#")[0]
    path, _, query = before_fragment.partition("?")
    return _Parts(start[0].lower(), user, path, parse_qsl(query, keep_blank_values=True))


def _end_of_user(rest: str) -> int:
    """The position of the ``@`` after the user information in the text after the scheme, -1 if there is none."""
    head = _BEHIND_PATH.split(rest, maxsplit=1)[0]
    host = head.partition("/")[0]
    tail = rest[len(head) :]
    in_secret = "@" in tail and not _OPTIONS.fullmatch(tail)
    if "@" in host:
        return (rest if in_secret else head).rfind("@")
    if ":" in host and (in_secret or ("@" in tail and not _PORT.search(host))):
        return rest.rfind("@")  # a secret with an unescaped "?" or "#"
    end = head.rfind("@")  # one with an unescaped "/", or an "@" in the path
    return end if ":" in head[: max(end, 0)] else -1
