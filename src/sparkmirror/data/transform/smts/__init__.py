"""Single message transforms on bytes: without Spark's SQL."""
