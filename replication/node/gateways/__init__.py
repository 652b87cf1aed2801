"""Gateways: listeners for clients of foreign protocols, inside a node."""

from .gateways import API_VERSION, Gateway

__all__ = ["API_VERSION", "Gateway"]
