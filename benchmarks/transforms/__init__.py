"""What transforms cost: `make bench-transforms`."""
