"""Brokers that fail, lose data or refuse it: what is mirrored all the same, what is reported."""
