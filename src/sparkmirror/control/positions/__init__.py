"""Positions of a flow: where it begins, and its lag."""
