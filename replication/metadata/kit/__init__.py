"""The cases of the stores' conformance kit; `insync.replication.metadata.testing` is its face."""
