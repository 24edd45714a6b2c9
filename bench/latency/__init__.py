"""What a small micro-batch costs, and how long an event takes to its output, beside Spark's own operators."""
