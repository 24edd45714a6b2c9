"""Transport of errors from worker to driver.

Owns: how an AsyncStateError raised in a Python worker reaches the driver as the same class with the same message, and
not as the Java exception that carried it. Invariants: an error that did not come from a task passes unchanged; a text
in a row's data is never treated as an error, because it lacks the driver's mark. Must not import pyspark: workers
import this module.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import pickle
import re
import secrets
import traceback
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from asyncstate import errors
from asyncstate.errors import AsyncStateError, JobError

_LOST_ROWS = re.compile(r"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|Checkpoint block rdd_\d+_\d+ not found")
_DIED = re.compile(
    r"Python worker exited unexpectedly|Python worker failed to connect|worker.*crashed", re.IGNORECASE
)
_mark = secrets.token_hex(8)
_JSON: Final = json.JSONDecoder()


class WorkerTracebackError(Exception):
    """The traceback of a task, as text; the cause of the error that is raised on the driver."""

    def __str__(self) -> str:
        return f"\n\nin the Python worker:\n{self.args[0]}"


class _Sent(msgspec.Struct, frozen=True):
    kind: str
    message: str
    traceback: str
    notes: list[str] = []


def own_mark() -> str:
    """The mark of notes that are meant for this process: a driver's tasks carry it."""
    return _mark


def adopt_mark(mark: str) -> None:
    """From now on, notes with ``mark`` are meant for this process too, which runs the micro-batches of another one:
    plans that were made there already have it."""
    global _mark
    _mark = mark


@contextlib.contextmanager
def marking(mark: str | None = None, where: str = "the task", every: bool = False) -> Iterator[None]:
    """Inside, an AsyncStateError gets a note from which the driver with this ``mark`` can restore it, however Java
    wraps the text. An exception that would end the process (``sys.exit``) gets one too, as a JobError that names
    ``where``. ``every``: any other exception gets a note, too, and keeps its frames.

    It is raised without its frames and its cause, which the note has: Java writes the text into its log four times.
    """
    mark = own_mark() if mark is None else mark
    try:
        yield
    except AsyncStateError as error:
        raise _sent(error, mark) from None
    except (SystemExit, KeyboardInterrupt) as leaving:
        raise _sent(left(where, leaving), mark) from None
    except Exception as error:
        if every:
            error.add_note(_note(error, mark))
        raise


def left(where: str, leaving: BaseException) -> JobError:
    """The error in place of an exception that would end the process; ``where`` raised it."""
    error = JobError(f"{where} raised {leaving!r}; nothing was committed. Raise an error instead")
    error.__cause__ = leaving
    return error


def _sent(error: AsyncStateError, mark: str) -> AsyncStateError:
    try:
        sent = type(error)(str(error))
    except TypeError:  # a user's subclass that takes other arguments
        sent = AsyncStateError(str(error))
    sent.add_note(_note(error, mark))
    return sent


def marked(error: AsyncStateError) -> str:
    """A text with the error's message and a note that ``restore`` understands, to be raised by Java."""
    return f"{error} {_note(error, own_mark())}"


def marked_in_sql(message: str, kind: type[AsyncStateError] = errors.SchemaError) -> str:
    """The SQL form of ``marked``: for errors that the JVM finds. ``message`` is an expression."""
    sent = f"to_json(named_struct('kind', '{kind.__name__}', 'message', {message}, 'traceback', ''))"
    return f"concat({message}, ' {_head(own_mark())}', {sent}, ']')"


def noted() -> str:
    """A regular expression that matches texts with a note for this process."""
    return rf"(?s).*{re.escape(_head(own_mark()))}.*"


def _head(mark: str) -> str:
    return f"[asyncstate-error {mark} "


def _note(error: Exception, mark: str) -> str:
    one_text = len(error.args) == 1 and isinstance(error.args[0], str)
    sent = {
        "kind": type(error).__name__,
        "message": error.args[0] if one_text else str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "notes": getattr(error, "__notes__", []),
    }
    return f"{_head(mark)}{json.dumps(sent)}]"


def restore(text: str) -> Exception | None:
    """The error of the last note in ``text`` for this process, its cause a WorkerTracebackError; None without one."""
    head = _head(own_mark())
    at = text.rfind(head)
    while at >= 0:
        try:
            return _restored(msgspec.convert(_JSON.raw_decode(text, at + len(head))[0], _Sent))
        except (
            ValueError,
            RecursionError,
            msgspec.MsgspecError,
        ):  # truncated, or within another note
            at = text.rfind(head, 0, at)
    return None


def _restored(sent: _Sent) -> Exception:
    kind = _class_of(sent.kind)
    try:
        error = None if kind is None else kind(sent.message)
    except TypeError:  # a class that takes other arguments
        error = None
    if error is None:
        error = JobError(f"{sent.kind}: {sent.message}")
    for note in sent.notes:
        error.add_note(note)
    error.__cause__ = WorkerTracebackError(sent.traceback)
    return error


def _class_of(name: str) -> type[Exception] | None:
    """The class of exceptions of this name. Other names, such as those of functions, have none: a text in an error must
    not be able to call them."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Inside, a Spark exception that carries an AsyncStateError of a task is raised as that error."""
    try:
        yield
    except AsyncStateError:
        raise
    except Exception as error:
        restored = restore(str(error))
        if restored is None:
            raise
        # Spark's own exception repeats the traceback between pages of Java frames; the cause says it once.
        raise restored from restored.__cause__


@contextlib.contextmanager
def stage_explained(uid: str, operator: object, stateless: Collection[str] = ()) -> Iterator[None]:
    """``translated``, and a JobError where Spark says only that an operator cannot be sent to its workers, or that one
    of them has died.

    ``stateless``: uids of operators that may have run in the same stage.
    """
    with translated():
        try:
            yield
        except AsyncStateError:
            raise
        except Exception as error:
            name = type(operator).__name__
            if isinstance(error, pickle.PicklingError) or "Could not serialize object" in str(error):
                raise JobError(
                    f"operator '{uid}' ({name}) cannot be pickled, so it cannot be sent to the workers: {error}. Keep "
                    "only parameters in __init__, and create files, locks and clients in open()"
                ) from error
            if _died(error):
                raise _ended(f"operator '{uid}' ({name})", "the operator", stateless) from error
            raise


def _died(error: Exception) -> bool:
    return _DIED.search(str(error)) is not None and restore(str(error)) is None


def _ended(where: str, what: str, stateless: Collection[str]) -> JobError:
    ran = ", or ".join([what, *([f"a stateless one ({', '.join(stateless)})"] if stateless else [])])
    return JobError(
        f"{where}: a Python worker ended while it ran {ran}: it was killed, ran out of memory, crashed in native "
        "code, or called os._exit; nothing was committed. See the executor's stderr; restart the query"
    )


@contextlib.contextmanager
def rows_explained(batch_id: int, stateless: Collection[str] = ()) -> Iterator[None]:
    """``translated``, and a JobError where Spark has lost rows of a stage together with an executor, or where a worker
    has died that may have run a ``stateless`` operator."""
    with translated():
        try:
            yield
        except AsyncStateError:
            raise
        except Exception as error:
            if stateless and _died(error):
                raise _ended(f"batch {batch_id}", "code of the micro_batch function", stateless) from error
            if not _LOST_ROWS.search(str(error)):
                raise
            raise JobError(
                f"batch {batch_id}: an executor was lost, and with it output rows that the micro_batch function was "
                "still reading; nothing was committed, restart the query to replay the batch"
            ) from error
