"""How Spark's Python processes are started."""
