"""Kafka's protocol: the only package that imports kafka-python, for message schemas and logins."""

from sparkmirror.wire.kafka_python import skip_clients

skip_clients()
