"""Kafka's protocol: apart from the demo, the only package that imports kafka-python."""
