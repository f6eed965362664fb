"""Record batches and the records in them, in all formats of Kafka; no I/O."""
