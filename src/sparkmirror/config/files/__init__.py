"""Reads properties files as Java does, and parses typed values."""
