"""How large a transaction of a store may be."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ._values import Compare, Operation, Put, ValueIs
from .errors import TransactionTooLargeError


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of one commit in a store: all that is within them is taken, whatever is above is refused at once.

    max_operations: of the operations, and of the compares; None: any number. max_bytes: of all of them together,
    each counted as `size_of` does; None: any number. item_bytes: what each one takes beside its key and its value.
    key_bytes: what each byte of a key (in UTF-8) takes, where a store must escape some.
    """

    max_operations: int | None = None
    max_bytes: int | None = None
    item_bytes: int = 0
    key_bytes: int = 1

    def size_of(self, *items: Compare | Operation) -> int:
        """Their bytes, as `max_bytes` counts them."""
        return sum(
            self.item_bytes
            + self.key_bytes * len(item.key.encode())
            + (len(item.value) if isinstance(item, Put | ValueIs) else 0)
            for item in items
        )

    def check(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
        """Raises `TransactionTooLargeError`."""
        count = max(len(compares), len(operations))
        if self.max_operations is not None and count > self.max_operations:
            raise TransactionTooLargeError(
                f"the transaction has {len(operations)} operations and {len(compares)} compares; the store takes "
                f"{self.max_operations} of each in one commit. Split it"
            )
        if self.max_bytes is not None and (size := self.size_of(*compares, *operations)) > self.max_bytes:
            raise TransactionTooLargeError(
                f"the transaction has {size} bytes; the store takes {self.max_bytes} in one commit. Split it"
            )

    def with_also(self, other: Limits) -> Limits:
        """The stricter of both, figure by figure."""
        return Limits(
            max_operations=_least(self.max_operations, other.max_operations),
            max_bytes=_least(self.max_bytes, other.max_bytes),
            item_bytes=max(self.item_bytes, other.item_bytes),
            key_bytes=max(self.key_bytes, other.key_bytes),
        )


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
