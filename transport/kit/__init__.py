"""The cases of the transports' conformance kit; `insync.transport.testing` is its face."""
