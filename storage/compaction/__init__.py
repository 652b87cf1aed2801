"""Compaction: the segments that it takes, the records that stay, and the swap."""
