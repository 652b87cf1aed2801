"""`tcp://host:port`: links over TCP, IPv4 and IPv6, file ranges by sendfile."""

from ._transport import TcpTransport

__all__ = ["TcpTransport"]
