from typing import Any, Protocol

class _Lib(Protocol):
    ISR_TX_DONE: int
    ISR_TX_BLOCKED: int
    ISR_TX_QUANTUM: int
    ISR_TX_TRUNCATED: int
    ISR_TX_NO_SENDFILE: int

    def isr_crc32c(self, crc: int, data: Any, len: int) -> int: ...
    def isr_poll_until(self, fd: int, until_ns: int) -> int: ...
    def isr_tx_step(self, sock: int, parts: Any, count: int, cursor: Any, quantum: int, sent: Any) -> int: ...
    def isr_tx_is_warm(self, fd: int, offset: int, length: int) -> int: ...

class _Ffi(Protocol):
    NULL: Any
    def from_buffer(self, data: Any, /) -> Any: ...
    def new(self, type: str, initial: Any = ..., /) -> Any: ...

lib: _Lib
ffi: _Ffi
