"""The data pipeline; start reading at `data.query`."""
