"""Slots without Spark, on healthy brokers: what they ask for and write, exactly-once."""
