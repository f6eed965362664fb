"""A flow seen from outside: what would change, what differs, what happened."""
