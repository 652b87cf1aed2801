"""The errors about users and their passwords."""

from __future__ import annotations

from ..core.errors import ErrorCode
from .errors import ServerError, add_errors


class UserNotFoundError(ServerError):
    """The cluster has no such user, or the user has no password for this mechanism."""

    code = ErrorCode.RESOURCE_NOT_FOUND


class UserExistsError(ServerError):
    """The cluster has a user of this name already."""

    code = ErrorCode.DUPLICATE_RESOURCE


class UnacceptableCredentialError(ServerError):
    """The credential to be kept of a password is too weak, or costs too much to check."""

    code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class UnsupportedMechanismError(ServerError):
    """No login works by a mechanism of this name."""

    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


add_errors(
    {
        cls.code: cls
        for cls in (
            UserNotFoundError,
            UserExistsError,
            UnacceptableCredentialError,
            UnsupportedMechanismError,
        )
    },
    {
        ErrorCode.RESOURCE_NOT_FOUND: "list the users (`insync user list`)",
        ErrorCode.DUPLICATE_RESOURCE: "choose another name, or change the user (`insync user alter`)",
        ErrorCode.UNACCEPTABLE_CREDENTIAL: "choose within these bounds",
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: "choose one of these",
    },
)
