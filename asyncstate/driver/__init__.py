"""The driver of a job: what happens between the rows of a micro-batch and its commit, whatever runs the operators.

Owns: the graph of a job and its check, the micro-batch and its operators, the commit and the metrics of both. An
``Executor`` holds rows and runs tasks: Spark in a streaming job, this process in tests.
Must not import Spark.
"""
