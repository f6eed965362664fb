"""Where Spark's Python processes come from."""
