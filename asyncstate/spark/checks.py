"""What the driver of a Spark job refuses before any row is read, beside what every driver does.

Owns: the rules for names and operators' options. Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncstate import runtime
from asyncstate.errors import ConfigurationError, JobError
from asyncstate.runtime import FILE_NAME_RULE, names_files

JOB_OPTIONS = ("checkpoint-dir", "retained-versions", "max-parallelism")
"""Settings that the whole job shares: an operator's own options cannot change them."""


def check_job_name(name: object) -> None:
    """Raise JobError unless ``name`` can name a folder."""
    if not names_files(name):
        raise JobError(
            f"job name {name!r} cannot be used: local folders are named after it; {FILE_NAME_RULE}"
        )


def check_uid(uid: object, taken: Sequence[str]) -> None:
    """Raise JobError unless ``uid`` can name files and is not in ``taken``."""
    runtime.check_uid(uid)
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
