"""A node's place in the cluster: its registration, its view of the store, the peers it can reach and trust."""
