"""Whether the target holds what the source holds, record by record."""
