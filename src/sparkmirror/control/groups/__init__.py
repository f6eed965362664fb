"""Consumer groups of the source, and where they stand on the target."""
