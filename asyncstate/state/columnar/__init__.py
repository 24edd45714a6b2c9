"""States of all keys of a bundle at once, as Arrow columns: rows, lists of rows, maps of rows.

Owns: the kinds of bundle grain and the layout of their stored lists (``list_blocks``).
"""
