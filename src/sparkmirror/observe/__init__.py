"""What an operator sees: meters, the live view, progress lines, logs."""
