"""Places: how a checkpoint's folder or URI is told apart, and how it is shown without its credentials.

Owns: ``is_uri``, ``folder_of``, ``masked`` and ``scrubbed``. Invariant: what ``masked`` returns may stand in a log, an
error or a report. Must not import anything of the project but errors.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from asyncstate.errors import ConfigurationError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_MASK = "***"
# Options of a URI that say where it points. Any other may be a secret (a token, a key) and is not shown.
_SHOWN = ("allow_bucket_creation", "allow_delayed_open", "endpoint_override", "region", "scheme")


def is_uri(place: str) -> bool:
    """Tell a URI that is not ``file:`` from a path."""
    return _SCHEME.match(place) is not None and not place.lower().startswith("file:")


def folder_of(place: str) -> str:
    """The path that a path or a ``file:`` URI names. Raises ConfigurationError for a file on another host."""
    if not place.lower().startswith("file:/"):
        return place
    parts = urlsplit(place)
    if parts.netloc not in ("", "localhost"):
        raise ConfigurationError(f"{place} names a folder on the host {parts.netloc!r}; write file:///path")
    return unquote(parts.path)


def masked(place: str) -> str:
    """The place as it may be shown: no user information, no values of options that may be secret."""
    parts = _split(place)
    if parts is None:
        return place
    host = f"{_MASK}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    options = [(key, value if key in _SHOWN else _MASK) for key, value in parse_qsl(parts.query, True)]
    return urlunsplit((parts.scheme, host, parts.path, urlencode(options, safe="*:/"), ""))


def scrubbed(text: str, place: str) -> str:
    """``text`` without what ``masked`` takes out of ``place``, for errors of libraries that repeat it."""
    parts = _split(place)
    if parts is None:
        return text
    text = text.replace(place, masked(place))
    user = parts.netloc.rpartition("@")[0]
    secrets = [user, *user.split(":", 1), *(v for k, v in parse_qsl(parts.query) if k not in _SHOWN)]
    for secret in sorted({form for s in secrets for form in (s, unquote(s)) if s}, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _split(place: str) -> SplitResult | None:
    return urlsplit(place) if is_uri(place) else None
