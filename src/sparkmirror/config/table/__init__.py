"""The settings table: every key that sparkmirror knows."""
