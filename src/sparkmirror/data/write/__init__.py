"""The sink end of a slot."""
