"""Kafka's protocol: the only package that imports kafka-python, for message schemas and logins."""
