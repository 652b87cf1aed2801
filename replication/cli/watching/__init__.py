"""Commands that show a running cluster: its status, its health, its logs, its rates."""
