"""Runs one operator on one partition for one micro-batch; also the driver's rules between micro-batches.

Owns: the choice of controller and store from the configuration. Must not import Spark.
"""

from asyncstate.runtime.broadcast_inputs import pack_broadcast
from asyncstate.runtime.checks import check_is_operator, check_stateless, checked_inputs, ordered_by
from asyncstate.runtime.claims import check_claimed
from asyncstate.runtime.context import TaskContext
from asyncstate.runtime.declared import (
    Delay,
    Keys,
    Order,
    OrderBy,
    SequenceBy,
    check_num_inputs,
    check_parallelism,
    delay_us,
    drop_stale_of_inputs,
    each_input,
    keys_of_inputs,
    sequences_of_inputs,
    sort_keys_of_inputs,
    times_of_inputs,
    watermark_wait_reason,
)
from asyncstate.runtime.driver import (
    Fingerprint,
    check_fingerprint,
    check_key_groups,
    fingerprint,
    left_out,
    operator_after,
    previous_processing_time,
    previous_watermark,
    sum_records,
)
from asyncstate.runtime.initial import (
    FIRST_ARRIVAL,
    InitialValues,
    check_columns,
    check_keeps,
    check_values,
    report_of_both,
)
from asyncstate.runtime.meaning import stored_meaning
from asyncstate.runtime.names import FILE_NAME_RULE, check_uid, names_files
from asyncstate.runtime.output_pipeline import (
    FilterStep,
    OutputPipeline,
    PartialAggregate,
    PartialTopN,
    ProjectStep,
    Step,
    aggregated_before,
)
from asyncstate.runtime.partial_aggregation_policy import (
    choose_partial_aggregation,
    choose_partial_limit,
    may_run_locally,
    task_partial_aggregation,
    task_partial_limit,
)
from asyncstate.runtime.prepared_rows import LATEST_EVENT_TIME, highest_event_time
from asyncstate.runtime.restore_plans import read_state
from asyncstate.runtime.spec import (
    CommitRecord,
    InputBatch,
    OutBatch,
    SideBatch,
    TaskSpec,
    pack_records,
    unpack_records,
)
from asyncstate.runtime.state_growth import growth_of
from asyncstate.runtime.statistics import TASK_METRICS, RowStatistics, TaskStatistics
from asyncstate.runtime.task import run_partition, run_stateless, run_to_the_end
from asyncstate.runtime.unmatched_retractions import warn_of_missing_rows
from asyncstate.runtime.watermark import (
    SourceTimes,
    WatermarkSource,
    advance_sources,
    input_sources,
    watermark_after,
    watermark_holders,
    watermark_source,
    why_watermark_waits,
)
from asyncstate.runtime.worker_memory import WorkerMemory, worker_memory

__all__ = [
    "FILE_NAME_RULE",
    "FIRST_ARRIVAL",
    "LATEST_EVENT_TIME",
    "TASK_METRICS",
    "CommitRecord",
    "Delay",
    "FilterStep",
    "Fingerprint",
    "InitialValues",
    "InputBatch",
    "Keys",
    "Order",
    "OrderBy",
    "OutBatch",
    "OutputPipeline",
    "PartialAggregate",
    "PartialTopN",
    "ProjectStep",
    "RowStatistics",
    "SequenceBy",
    "SideBatch",
    "SourceTimes",
    "Step",
    "TaskContext",
    "TaskSpec",
    "TaskStatistics",
    "WatermarkSource",
    "WorkerMemory",
    "advance_sources",
    "aggregated_before",
    "check_claimed",
    "check_columns",
    "check_fingerprint",
    "check_is_operator",
    "check_keeps",
    "check_key_groups",
    "check_num_inputs",
    "check_parallelism",
    "check_stateless",
    "check_uid",
    "check_values",
    "checked_inputs",
    "choose_partial_aggregation",
    "choose_partial_limit",
    "delay_us",
    "drop_stale_of_inputs",
    "each_input",
    "fingerprint",
    "growth_of",
    "highest_event_time",
    "input_sources",
    "keys_of_inputs",
    "left_out",
    "may_run_locally",
    "names_files",
    "operator_after",
    "ordered_by",
    "pack_broadcast",
    "pack_records",
    "previous_processing_time",
    "previous_watermark",
    "read_state",
    "report_of_both",
    "run_partition",
    "run_stateless",
    "run_to_the_end",
    "sequences_of_inputs",
    "sort_keys_of_inputs",
    "stored_meaning",
    "sum_records",
    "task_partial_aggregation",
    "task_partial_limit",
    "times_of_inputs",
    "unpack_records",
    "warn_of_missing_rows",
    "watermark_after",
    "watermark_holders",
    "watermark_source",
    "watermark_wait_reason",
    "why_watermark_waits",
    "worker_memory",
]
