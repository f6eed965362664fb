"""sparkmirror: a mirror between Apache Kafka clusters."""
