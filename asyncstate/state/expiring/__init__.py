"""Time to live: expiry, and the states of both grains that have one.

Owns: the declaration (``ttl``), stamps and sweeping (``expiry``), and the kinds with a time to live.
"""
