"""What a mirror must be allowed to do."""
