"""Property files as Java reads them, and typed values out of their text."""
