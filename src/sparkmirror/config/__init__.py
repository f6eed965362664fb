"""Configuration: reads MirrorMaker's own files and returns checked ``model.MirrorSettings``."""
