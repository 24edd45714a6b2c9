"""Rows on their way into and out of an operator: conversion, buffers, order, bundles, steps on the output.

Must not import ``declarations``, ``partition`` or Spark.
"""
