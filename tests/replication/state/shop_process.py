"""`python -m tests.replication.state.shop_process SERVERS NAME VERSION RUN`: stocks one item after the other.

It prints the topic's version, then each item that was acknowledged, with the topic's version.
"""

from __future__ import annotations

import itertools
import sys

import trio

from insync.replication.state import replicate
from tests.replication.state.shops import SHOPS


async def main() -> None:
    servers, name, version, run = sys.argv[1:]
    options = {"snapshot_every": 100, "digest_every": 10, "keeper_lease_ms": 1000}
    async with replicate(SHOPS[int(version)], servers, "shop", name=name, **options) as shop:  # type: ignore[arg-type]
        print(shop.state_version, flush=True)
        for number in itertools.count():
            item = f"{name}-{run}-{number}"
            await shop.stock(item, 1)
            print(item, shop.state_version, flush=True)


if __name__ == "__main__":
    trio.run(main)
