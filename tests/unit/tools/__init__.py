"""What tests and measures: benchmarks, runs with faults, mutants, audits, the report of all."""
