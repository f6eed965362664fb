"""What a run shows: the live view, progress lines, the final summary."""
