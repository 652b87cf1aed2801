"""Parts of every store that its author need not write again: the rules of a transaction, and watches.

`check_key`, `check_prefix`, `check_timeout` and `check_transaction` raise `InvalidTransactionError` as the
interface asks; `own_session` refuses the session of another handle, and one that is over; `holds` decides a
compare; `WatchHub` keeps the open watches of a handle, merges their events and ends them; `History` keeps which
keys changed at which revision, for `changes`.
"""

from ._history import History
from ._transaction import check_key, check_prefix, check_timeout, check_transaction, holds, own_session
from ._watch import WatchHub

__all__ = [
    "History",
    "WatchHub",
    "check_key",
    "check_prefix",
    "check_timeout",
    "check_transaction",
    "holds",
    "own_session",
]
