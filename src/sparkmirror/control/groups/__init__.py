"""Consumer groups of the source: checkpoints, offset translation, and group offset sync."""
