"""Overhead over plain rocksdict code that a user would write by hand: ``python -m bench micro``."""
