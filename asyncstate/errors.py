"""Every error the framework raises on purpose, under one root.

Owns: the exception classes. Imports nothing of the project.
Each message names the operator, state, key, column or file concerned and the next action to take.
"""

from __future__ import annotations


class AsyncStateError(Exception):
    """Root of all errors raised by asyncstate."""


class ConfigurationError(AsyncStateError):
    """An unknown configuration key, a value of the wrong type or out of range, or two settings that disagree."""


class SchemaError(AsyncStateError):
    """A column is missing, has an unsupported type, or does not match what was declared."""


class StateDeclarationError(AsyncStateError):
    """A state is declared twice, with another type than the stored one, or outside ``open``."""


class StateAccessError(AsyncStateError):
    """A state was used in a way it does not allow: without a key, after the batch, with a forbidden value."""


class FutureStateError(AsyncStateError):
    """A StateFuture was completed twice, combined with None, used by another record than its own, or left pending."""


class OperatorError(AsyncStateError):
    """User code of an operator failed; carries operator, state and key and chains the user's exception."""


class CodecError(AsyncStateError):
    """Bytes in the store or a value passed to it do not fit the declared type."""


class CheckpointError(AsyncStateError):
    """The checkpoint cannot be used as it is: of another job, finished, or of an unknown format version."""


class CheckpointCorruptionError(CheckpointError):
    """A file of the checkpoint is missing or damaged; the message names the file and an older usable version."""


class ConcurrentJobError(CheckpointError):
    """Another driver has taken over this checkpoint; this one must stop."""


class StoreError(AsyncStateError):
    """The local store failed: it cannot be opened, read or written."""


class EnvironmentSetupError(AsyncStateError):
    """The machine lacks something the framework needs, such as a JDK 17."""


class JobError(AsyncStateError):
    """The job was used wrongly: duplicate uid, apply outside of a batch, batch id out of order."""


class SqlError(AsyncStateError):
    """A statement of ``job.sql`` is no SQL that Spark understands, or asks for what a stream cannot keep right."""
