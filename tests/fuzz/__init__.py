"""Coverage-guided fuzzing of the C that reads foreign bytes. `python -m tests.fuzz AREA --seconds N`."""
