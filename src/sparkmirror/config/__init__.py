"""Configuration: MirrorMaker's own files in, checked ``model.MirrorSettings`` out."""
