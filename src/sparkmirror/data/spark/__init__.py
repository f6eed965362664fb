"""Spark itself: its session, its JVM, its files, and its end."""
