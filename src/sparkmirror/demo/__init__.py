"""The demo: two real Kafka clusters on this machine, and a mirror between them."""
