"""The rows between source and sink, and the memory and pipes that carry them."""
