"""``sparkmirror transform``: transforms without a mirror."""
