"""What the driver of a Spark job refuses before any row is read, beside what every driver does.

Owns: the rules for names and operators' options. Must not import pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from asyncstate.errors import ConfigurationError, JobError

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_FILE_NAME_RULE = "use letters, digits, '_', '-' and '.', at most 100, starting with a letter or digit"

JOB_OPTIONS = ("checkpoint-dir", "retained-versions", "max-parallelism")
"""Settings that the whole job shares: an operator's own options cannot change them."""


def check_job_name(name: object) -> None:
    """Raise JobError unless ``name`` can name a folder."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise JobError(
            f"job name {name!r} cannot be used: local folders are named after it; {_FILE_NAME_RULE}"
        )


def check_uid(uid: object, taken: Sequence[str]) -> None:
    """Raise JobError unless ``uid`` can name files and is not in ``taken``."""
    if not isinstance(uid, str) or not _FILE_NAME.fullmatch(uid):
        raise JobError(f"uid {uid!r} cannot be used: its state's files are named after it; {_FILE_NAME_RULE}")
    if uid in taken:
        raise JobError(f"uid '{uid}' is applied twice in one micro-batch; give each operator its own uid")


def check_operator_options(uid: str, options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an option that belongs to the job."""
    for name in JOB_OPTIONS:
        if f"async-state.{name}" in options:
            raise ConfigurationError(
                f"operator '{uid}': async-state.{name} holds for the whole job; give it to "
                "StreamingJob(options=...)"
            )
