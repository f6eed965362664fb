"""What a run shows while it lasts: the live view, lines, the table at its end."""
