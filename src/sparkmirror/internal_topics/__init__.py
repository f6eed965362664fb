"""Record formats of MirrorMaker 2's internal topics and of our own. No I/O."""
