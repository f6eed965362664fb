"""Spark clusters: mirrors on their workers, and who reaches their ports."""
