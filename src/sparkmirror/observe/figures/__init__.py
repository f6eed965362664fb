"""Measurements: the slots' reports, added up per flow and partition."""
