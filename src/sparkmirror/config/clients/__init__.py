"""Settings of one client: where it connects, how it logs in, what it fetches and produces."""
