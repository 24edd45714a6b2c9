"""Time to live, at both grains.

Owns: the declaration (``ttl``), stamps and the clean-up of record grain (``expiry``), stored rows with stamps
(``stamped_codec``), and the record-grain states with a time to live (``ttl_states``).
"""
