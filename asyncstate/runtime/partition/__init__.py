"""The run of one operator on one partition for one micro-batch: both grains, the store, the worker's memory.

Owns: the choice of controller and store from the configuration. Must not import ``declarations`` or Spark.
"""
