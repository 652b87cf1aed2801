"""Gateways: listeners for clients of foreign protocols, inside a node."""

from .gateways import Gateway

__all__ = ["Gateway"]
