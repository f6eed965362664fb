"""What stands in MirrorMaker 2's internal topics and in our own: formats without any I/O."""
