"""The Fetch path: from the brokers of the source to raw batches."""
