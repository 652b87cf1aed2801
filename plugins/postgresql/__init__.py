"""`postgresql://user@host1,host2/database?namespace=orders`: a cluster's metadata store in PostgreSQL."""

from ._address import PostgresqlAddress
from ._store import PostgresqlSession, PostgresqlStore, make

__all__ = ["PostgresqlAddress", "PostgresqlSession", "PostgresqlStore", "make"]
