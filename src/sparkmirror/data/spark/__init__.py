"""Spark itself: its session, its JVM, its files, and how it ends."""
