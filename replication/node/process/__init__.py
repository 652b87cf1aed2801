"""A node as a process: in a child of the program, in a thread, or alone."""
