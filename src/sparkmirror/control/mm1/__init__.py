"""A MirrorMaker 1 flow as a member of its consumer group."""
