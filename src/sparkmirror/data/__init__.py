"""The data pipeline; `data.query` is where to start reading."""
