"""`tcp://host:port`: links over TCP, file ranges by sendfile. `tls://host:port`: encrypted, both ends known."""

from ._tls import TlsTransport
from ._transport import TcpTransport

__all__ = ["TcpTransport", "TlsTransport"]
