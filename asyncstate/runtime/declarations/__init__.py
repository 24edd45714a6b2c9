"""What the driver checks of an operator and its inputs before any row is read, and what is derived from it.

Owns: the declarations of inputs, uids, the meaning of state, claims on it, its growth and initial values, watermarks.
Imports ``partition`` and ``rows`` for the dry run of an operator. Must not import Spark.
"""
