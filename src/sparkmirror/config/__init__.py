"""Configuration: reads MirrorMaker's own files and returns checked ``settings.MirrorSettings``."""
