"""What a first micro-batch of millions of keys takes in memory and time as its writes are bounded."""
