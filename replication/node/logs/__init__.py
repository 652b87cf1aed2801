"""The log directories of a node: threads that write, flush, read and maintain logs, and the scan of a start."""
