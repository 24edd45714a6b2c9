"""Views: a value, a list or a map that a function uses in the same way over state and in memory."""
