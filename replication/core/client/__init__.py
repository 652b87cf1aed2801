"""The machines that a client runs: its membership in a group, its commits, its transactions."""
