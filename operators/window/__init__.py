"""Windows of time and what is computed over them."""
