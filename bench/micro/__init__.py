"""What the framework adds to plain rocksdict code that a user would write by hand: ``python -m bench micro``.

Each case has both sides in turns on the same keys, and a process of its own: what a case before it has left in the
heap makes small objects lie elsewhere, which was worth up to 10% of a chain of a ValueState. One core: nothing runs
beside the loop.
"""
