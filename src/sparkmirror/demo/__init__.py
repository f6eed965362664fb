"""Real Kafka clusters on this machine, and the demo that mirrors between two of them."""
