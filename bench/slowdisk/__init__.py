"""State on devices that answer late: sync against async as the latency of a read grows.

Owns: ``python -m bench slow-disk``: the workloads, the devices, the shim that delays reads, table and plot.
"""
