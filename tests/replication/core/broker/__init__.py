"""The broker machine's parts, driven from outside."""
