"""Time to live, at both grains.

Owns: the declaration (``ttl``), stamps, and reads and the clean-up of stamped values at record grain (``expiry``), and
stored rows with stamps (``stamped_codec``).
"""
