"""Scripts that measure Vitrail side by side with its peers; run as `python -m benchmarks.NAME`."""
