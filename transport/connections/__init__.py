"""Connections: the handshake, requests and answers over one link, and the server that accepts them."""
