"""Decisions of a gateway, without trio or sockets: connections, fetch sessions, metadata, settings."""
