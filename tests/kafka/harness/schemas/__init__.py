"""Fields of messages that only tests send, in kafka-python's notation."""
