"""What an operator sees: figures, the live view, progress lines, metrics, logs."""
