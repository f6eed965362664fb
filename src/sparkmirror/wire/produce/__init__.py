"""The Produce path: raw batches to the target's brokers, and transactions."""
