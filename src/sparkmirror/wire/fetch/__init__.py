"""The Fetch path: raw batches from the source's brokers."""
