"""Java's MirrorMaker 2 and its client beside ours: each reads what the other wrote."""
