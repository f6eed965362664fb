"""Kafka's protocol: the only package that imports kafka-python."""
