"""The Produce path: raw batches to the brokers of the target, and transactions."""
