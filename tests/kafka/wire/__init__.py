"""The layer that speaks with brokers: clients, sessions, errors of bootstrap servers."""
