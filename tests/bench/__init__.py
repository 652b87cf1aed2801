"""Benchmarks: each figure beside the raw limit or a peer, measured in the same run. `python -m tests.bench NAME`."""
