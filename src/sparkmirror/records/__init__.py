"""Record batches and the records in them, in every format of Kafka's; without any I/O."""
