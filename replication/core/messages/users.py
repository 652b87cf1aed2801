"""Requests about users, and answers. All of them stand in `messages`, too."""

from __future__ import annotations

import msgspec

from ..scram import ScramCredential


class AlterUserRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`credentials` are set, those of `remove` are taken away (by SASL mechanism); a user without any is gone.

    expects: `new` or `known`, if the user must not exist yet, or must; empty: either. allow: what the user may do;
    None: that stays as it is, unless `any_operation` takes the rule away. See
    `insync.replication.core.control.users`.
    """

    name: str
    credentials: dict[str, ScramCredential] = msgspec.field(default_factory=dict)
    remove: list[str] = msgspec.field(default_factory=list)
    allow: list[str] | None = None
    any_operation: bool = False
    expects: str = ""
    forwarded: bool = False


class AlterUserResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: int
    message: str = ""
    revision: int = 0


class DescribeUsersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`names` None asks for all users."""

    names: list[str] | None = None


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A user. mechanisms: by SASL mechanism, how often the password is hashed; empty if there is no such user.
    allow: what rules about the user alone let it do; None: there are none.
    mark: another one whenever the password was set, also to the same one; empty if the node does not say. Nothing
    about a password can be told from it.
    """

    name: str
    mechanisms: dict[str, int]
    allow: list[str] | None = None
    mark: str = ""


class DescribeUsersResponse(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of their names. Of passwords it says nothing."""

    users: list[UserInfo]
    revision: int = 0


class VerifyUserRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Is this the password of that user?"""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"VerifyUserRequest(name={self.name!r})"


class VerifyUserResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`operations`: what the user may do where it has logged in; nothing if it is not `verified`."""

    verified: bool
    operations: list[str] = msgspec.field(default_factory=list)
