"""What the client of a Spark Connect job and the server's process that runs its micro-batches say to each other.

Owns: ``ConnectFiles``: the progress of micro-batches and requests to stop, as files of the job's checkpoint.
Invariant: results never depend on these files; all of them may be lost. A file is of one start of a query, so that
those of an earlier one are never read as news. The client deletes what it has read, and all but one small file when the
query has ended; without a client there are at most as many as a job's history has entries, until the next start.
Must not import pyspark.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import msgspec

from asyncstate.driver.job_driver import HISTORY_BATCHES_MAX
from asyncstate.driver.progress import Progress
from asyncstate.errors import CheckpointError
from asyncstate.storage import CheckpointFiles

_FOLDER: Final = "connect/"
_BEGUN: Final = b"begun"
_ASKED: Final = b"asked"
_REFUSED: Final = b"refused"

_log = logging.getLogger(__name__)


class ConnectFiles:
    """The files of the start ``run`` of a query, in the checkpoint ``files``."""

    def __init__(self, files: CheckpointFiles, run: str) -> None:
        self._files = files
        self._own = f"{_FOLDER}{run}/"
        self._begun = f"{self._own}begun"
        self._progress = f"{self._own}progress-"
        self._stop = f"{self._own}stop"
        self._written: list[str] = []
        self._read = ""

    # -- in the server's process -----------------------------------------------------------------------

    def check_begun(self, job: str) -> None:
        """Raise CheckpointError unless this is the folder where the client has begun."""
        if self._files.size_bytes(self._begun) is None:
            raise CheckpointError(
                f"job '{job}': the server of Spark Connect finds another folder at the checkpoint's location "
                f"{self._files.shown} than the client; give an object store, or a folder that client, server and "
                "workers share. If it is the same folder, the job was started again meanwhile"
            )

    def write_progress(self, progress: Progress) -> None:
        """Keep the progress of a committed micro-batch, and delete the oldest one beyond a job's history. A failure is
        logged: the micro-batch is committed."""
        name = f"{self._progress}{progress['batch_id']:020d}"
        try:
            self._files.put_bytes(name, msgspec.json.encode(progress))
            self._written.append(name)
            while len(self._written) > HISTORY_BATCHES_MAX:
                self._files.delete(self._written.pop(0))
        except Exception as error:
            _log.warning(
                "the progress of batch %d does not reach the client: %s", progress["batch_id"], error
            )

    def stop_asked(self) -> bool:
        """Whether the client wants no further micro-batch to begin."""
        return self._files.size_bytes(self._stop) is not None

    def refuse(self) -> None:
        """Notify the client that a micro-batch has not begun."""
        self._files.put_bytes(self._stop, _REFUSED)

    # -- at the client ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Delete the files of earlier starts, and let the server see that both have the same checkpoint."""
        self._files.delete_files(self._files.list(_FOLDER))
        self._files.put_bytes(self._begun, _BEGUN)

    def new_progress(self) -> list[Progress]:
        """The progress of micro-batches since the last call, the newest last; its files are deleted. What cannot be
        read now comes with a later call."""
        found = []
        for name in self._files.list(self._progress):
            if name > self._read:
                try:
                    data = self._files.get_bytes(name)
                except Exception as error:  # deleted meanwhile, or the store did not answer
                    _log.debug("%s cannot be read yet: %s", name, error)
                    break
                self._read = name
                try:
                    found.append(msgspec.json.decode(data, type=Progress))
                except msgspec.MsgspecError as error:
                    _log.warning("the progress in %s cannot be read: %s", name, error)
            with suppress(Exception):  # a later call, or the next start, tries again
                self._files.delete(name)
        return found

    def ask_to_stop(self) -> None:
        """Let no further micro-batch begin."""
        self._files.put_bytes(self._stop, _ASKED)

    def is_refused(self) -> bool:
        """Whether the server's process has seen the request, and has refused a micro-batch."""
        try:
            return self._files.get_bytes(self._stop) == _REFUSED
        except Exception:
            return False

    def forget_stop(self) -> None:
        """Take the request back."""
        with suppress(Exception):
            self._files.delete(self._stop)

    def end(self) -> None:
        """Delete what has been read, and the request to stop, after the query has ended. The file of ``begin`` stays:
        the same writer can start another query."""
        with suppress(Exception):  # the next start tries again
            found = self._files.list(self._progress)
            self._files.delete_files([self._stop, *(name for name in found if name <= self._read)])
