"""The source end of a slot."""
