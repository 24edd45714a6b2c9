"""Views: values, lists and maps that a function uses in the same way over state and in memory."""
