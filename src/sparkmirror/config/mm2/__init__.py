"""MirrorMaker 2's file: its keys, the flows that each key applies to, and its settings."""
