"""The inputs that a decision about a group may use besides the group."""

from __future__ import annotations

import msgspec

from ..coordination.decisions import Clock
from ..coordination.topics_view import TopicsView
from .settings import GroupSettings


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's topics, what an operator has chosen, and the time."""

    view: TopicsView
    settings: GroupSettings
    clock: Clock
