"""Fields of the messages that kafka-python does not have, as Kafka's protocol guide lists them.

In the notation that kafka-python builds its messages from; `wire.admin.group_describe` does so.
"""
