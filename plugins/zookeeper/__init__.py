"""`zookeeper://host:port[,host:port...]/path`: the metadata store of a cluster on an Apache ZooKeeper ensemble."""

from ._address import ZookeeperAddress
from ._store import ZookeeperSession, ZookeeperStore, make

__all__ = ["ZookeeperAddress", "ZookeeperSession", "ZookeeperStore", "make"]
