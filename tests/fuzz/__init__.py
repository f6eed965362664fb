"""Hostile input for every parser on the path of a record; a case is a target and a number."""
