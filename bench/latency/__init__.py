"""Cost of a small micro-batch, and latency from event to output, compared with Spark's own operators."""
