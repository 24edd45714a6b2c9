"""The command line, ``python -m asyncstate``: maintenance of checkpoints without a Spark session, and jobs of SQL.

``app`` has the commands, ``inspecting`` those that read, ``upkeep`` those that check and roll back, ``migrating``
those that rewrite a state, ``statements`` those that run files of SQL, which ``script`` reads and whose tables
``connectors`` declares; ``output`` has tables, JSON and exit codes. Only ``statements`` may import Spark, when it runs.
"""
