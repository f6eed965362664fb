"""Topics of the target: found, made, and kept equal to those of the source."""
