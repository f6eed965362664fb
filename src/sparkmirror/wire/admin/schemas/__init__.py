"""Fields of messages that kafka-python lacks, as Kafka's protocol guide lists them.

kafka-python builds its messages from this notation; `wire.admin.group_describe` loads it.
"""
