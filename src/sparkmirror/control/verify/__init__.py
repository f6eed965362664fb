"""``verify``: compares source and target record by record."""
