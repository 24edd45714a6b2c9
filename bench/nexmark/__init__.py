"""Nexmark: its events as Spark column expressions, its queries, and a batch engine that checks the results.

Source: Tucker, Tufte, Papadimos, Maier: "NEXMark, a benchmark for queries over data streams"; the rules of
the generator and the SQL of q0 to q22 follow github.com/nexmark/nexmark.
"""
