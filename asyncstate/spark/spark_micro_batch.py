"""A micro-batch of a job on Spark.

Owns: ``MicroBatch``, under the name and with the types that users write.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from asyncstate.driver import micro_batch


class MicroBatch(micro_batch.MicroBatch[DataFrame]):
    __doc__ = micro_batch.MicroBatch.__doc__
