"""The driver of a job: the work between the rows of a micro-batch and its commit, independent of the engine.

Owns: the graph of a job and its check, the micro-batch and its operators, the commit and the metrics of both. An
``Executor`` holds rows and runs tasks: Spark in a streaming job, the test process in tests.
Must not import Spark.
"""
