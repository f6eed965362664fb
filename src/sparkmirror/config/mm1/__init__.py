"""MirrorMaker 1's files, from 0.7 to 3.9."""
