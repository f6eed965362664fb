"""MirrorMaker 1's files: its consumer group, its record path, files of old releases."""
