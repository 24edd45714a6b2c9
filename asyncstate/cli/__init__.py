"""The command line, ``python -m asyncstate``: maintenance of checkpoints without a Spark session.

``app`` has the commands, ``inspecting`` those that read, ``upkeep`` those that check and roll back, ``migrating``
those that rewrite a state, ``output`` tables, JSON and exit codes. Must not import Spark.
"""
