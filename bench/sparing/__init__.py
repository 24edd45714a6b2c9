"""What stateless operators and ``apply_batch`` spare: the exchange, the store, the checkpoint.

Must not import the other benchmarks.
"""
