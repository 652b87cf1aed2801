"""Has the controller create a topic, however often it has to be asked."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ...core import messages as m
from ...core.errors import ErrorCode
from ..connection._cluster import Cluster
from ..errors import AuthorizationError, ClientError, InvalidRequestError, error_for

RETRIED = (ErrorCode.NOT_CONTROLLER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
"""Refusals of a controller that another one, or a later attempt, may not repeat."""


class Creation:
    """Asks for a topic until a controller has answered. Cancel it to stop."""

    def __init__(
        self, cluster: Cluster, request: m.CreateTopicRequest, timeout: float, saw: Callable[[int], None]
    ) -> None:
        """timeout: seconds of one attempt. saw: called with the store revision of each answer."""
        self.topic_id: str | None = None
        """Set once the topic is in the metadata store."""
        self.error: ClientError | None = None
        """Why the last attempt failed."""
        self._cluster = cluster
        self._request = request
        self._timeout = timeout
        self._saw = saw

    async def run(self) -> str:
        """The id of the topic. Raises ClientError: the controller refused it for good."""
        attempt = 0
        while self.topic_id is None:
            attempt += 1
            self.topic_id = await self._try()
            if self.topic_id is None:
                await trio.sleep(self._cluster.quick_backoff(attempt))
        return self.topic_id

    async def _try(self) -> str | None:
        try:
            answer: m.CreateTopicResponse = await self._cluster.ask(
                m.Kind.CREATE_TOPIC, self._request, timeout=self._timeout
            )
        except (AuthorizationError, InvalidRequestError):
            raise
        except ClientError as error:
            self.error = error
            return None
        self._saw(answer.revision)
        if answer.error == ErrorCode.NONE:
            return answer.topic_id
        refusal = error_for(answer.error, f"topic {self._request.name!r}", answer.message)
        if answer.error not in RETRIED:
            raise refusal
        self.error = refusal
        return None
