"""Benchmarks: each figure beside the raw limit or a peer, in one run. `python -m tests.bench NAME`."""
