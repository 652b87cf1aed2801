"""Requests about users, and answers. All of them stand in `messages`, too."""

from __future__ import annotations

import attrs

from ..scram import ScramCredential


@attrs.frozen(kw_only=True)
class AlterUserRequest:
    """`credentials` are set, those of `remove` are taken away (by SASL mechanism); a user without any is gone.

    expects: `new` or `known`, if the user must not exist yet, or must; empty: either. allow: what the user may do;
    None: that stays as it is, unless `any_operation` takes the rule away. See
    `insync.replication.core.control.users`.
    """

    name: str
    credentials: dict[str, ScramCredential] = attrs.Factory(dict)
    remove: list[str] = attrs.Factory(list)
    allow: list[str] | None = None
    any_operation: bool = False
    expects: str = ""
    forwarded: bool = False


@attrs.frozen(kw_only=True)
class AlterUserResponse:
    error: int
    message: str = ""
    revision: int = 0


@attrs.frozen(kw_only=True)
class DescribeUsersRequest:
    """`names` None asks for all users."""

    names: list[str] | None = None


@attrs.frozen(kw_only=True)
class UserInfo:
    """A user. mechanisms: by SASL mechanism, how often the password is hashed; empty if there is no such user.
    allow: what rules about the user alone let it do; None: there are none.
    mark: another one whenever the password was set, also to the same one; empty if the node does not say. Nothing
    about a password can be told from it.
    """

    name: str
    mechanisms: dict[str, int]
    allow: list[str] | None = None
    mark: str = ""


@attrs.frozen(kw_only=True)
class DescribeUsersResponse:
    """In the order of their names. Of passwords it says nothing."""

    users: list[UserInfo]
    revision: int = 0


@attrs.frozen(kw_only=True)
class VerifyUserRequest:
    """Is this the password of that user?"""

    name: str
    password: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class VerifyUserResponse:
    """`operations`: what the user may do where it has logged in; nothing if it is not `verified`."""

    verified: bool
    operations: list[str] = attrs.Factory(list)
