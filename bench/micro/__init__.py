"""Overhead over plain rocksdict code that a user would write by hand: ``python -m bench micro``.

Each case runs both sides in turns on the same keys, in its own process: objects of an earlier case in the
heap move small objects elsewhere, which changed a chain on a ValueState by up to 10%. One core: nothing runs
in parallel to the loop.
"""
