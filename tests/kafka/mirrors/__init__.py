"""Whole mirrors, started by their command: modes, topologies, standbys, every kind of record."""
