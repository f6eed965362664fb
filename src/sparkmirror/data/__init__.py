"""The data pipeline; `data.flow` is where to start reading."""
