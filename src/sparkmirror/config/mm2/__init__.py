"""MirrorMaker 2's file: its keys, which flow each reaches, and what it says."""
