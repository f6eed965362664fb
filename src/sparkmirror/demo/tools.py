"""Writes scripts for Kafka's own command-line tools, under their usual names."""

from __future__ import annotations

import shlex
from pathlib import Path

from sparkmirror.testing.jvm import KafkaRuntime

__all__ = ["TOOLS", "write_tools"]

TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
}
"""Script name and main class."""


def write_tools(runtime: KafkaRuntime, directory: Path) -> None:
    """Write an executable script for each of ``TOOLS`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, main_class in TOOLS.items():
        command = shlex.join(runtime.command(main_class, heap="256m", log_level="error"))
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
        script.chmod(0o755)
