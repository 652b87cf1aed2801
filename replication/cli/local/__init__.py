"""A local cluster: nodes as child processes, and commands that run beside them."""
