"""States of the record's current key, a row at a time: values, lists, maps, reductions, aggregates.

Owns: the kinds of record grain, what they share (``binding``), the order of operations that wait (``pending``), and
what is known of their values (``known``).
"""
