"""One run of the mirror, from checked settings to an exit code."""
