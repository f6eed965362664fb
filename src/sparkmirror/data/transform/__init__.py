"""The record path between source and sink."""
