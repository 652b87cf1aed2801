"""What a decision about a group may look at besides the group."""

from __future__ import annotations

import attrs

from .decisions import Clock
from .group_settings import GroupSettings
from .topics_view import TopicsView


@attrs.frozen(kw_only=True)
class Context:
    """The cluster's topics, what an operator has chosen, and the time."""

    view: TopicsView
    settings: GroupSettings
    clock: Clock
