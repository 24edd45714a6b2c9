"""Windows of time and computations over them."""
