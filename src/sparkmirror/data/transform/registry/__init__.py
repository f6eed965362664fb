"""`decode_registry` and `encode_registry`: values with schemas of a schema registry, as JSON."""
