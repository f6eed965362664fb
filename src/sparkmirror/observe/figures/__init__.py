"""What is measured: reports of slots added up for each flow and partition."""
