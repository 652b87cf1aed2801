"""What a gateway decides without trio or sockets: connections, fetch sessions, metadata, settings."""
