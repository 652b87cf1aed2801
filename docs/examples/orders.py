"""An order service: each process has a node, a copy of all orders, and an HTTP server (asyncio, Starlette).

    NODE_ID=1 DATA=/srv/orders/1 STORE=sqlite:////srv/orders/meta.db PORT=8001 python orders.py

Start it with NODE_ID 1, 2 and 3. A client that repeats a request, at whichever process, sends the same
Idempotency-Key.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from insync.replication import NodeSettings
from insync.replication.asyncio import Admin, Node
from insync.replication.client import ClientError
from insync.replication.state import IdempotencyConflictError, ReplicatedObject, command, query
from insync.replication.state.asyncio import replicate

NODES = 3
MAJORITY = 2


class SoldOutError(Exception):
    """There is not enough left."""


class Orders(ReplicatedObject):
    """What every copy knows. Commands run on each of them, in the same order, and look at nothing else."""

    errors = (SoldOutError,)

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.orders: dict[str, list[Any]] = {}

    @command
    def stock(self, item: str, count: int) -> int:
        self.left[item] = self.left.get(item, 0) + count
        return self.left[item]

    @command
    def place(self, item: str, count: int, note: str) -> str:
        if self.left.get(item, 0) < count:
            raise SoldOutError(item, self.left.get(item, 0))
        self.left[item] -= count
        number = str(self.context.position)
        self.orders[number] = [item, count, note]
        return number

    @query
    def order(self, number: str) -> list[Any] | None:
        return self.orders.get(number)

    @query
    def notes(self) -> list[str]:
        return [note for _, _, note in self.orders.values()]


async def place(request: Request) -> Response:
    body, orders = await request.json(), request.app.state.orders
    key = request.headers.get("idempotency-key")
    try:
        if key is None:
            number = await orders.place(body["item"], body["count"], body.get("note", ""))
        else:
            number = await orders.place.once(key, body["item"], body["count"], body.get("note", ""))
    except SoldOutError as error:
        return JSONResponse({"error": "sold out", "left": error.args[1]}, status_code=409)
    except IdempotencyConflictError as error:
        return JSONResponse({"error": str(error)}, status_code=422)
    except ClientError as error:
        # Nobody knows whether it was done: the client asks again, with the same key, here or elsewhere.
        return JSONResponse({"error": str(error)}, status_code=503)
    return JSONResponse({"number": number}, status_code=201)


async def stock(request: Request) -> Response:
    body, orders = await request.json(), request.app.state.orders
    try:
        left = await orders.stock.once(request.headers["idempotency-key"], body["item"], body["count"])
    except IdempotencyConflictError as error:
        return JSONResponse({"error": str(error)}, status_code=422)
    return JSONResponse({"left": left})


async def show(request: Request) -> Response:
    """Current: an order that was acknowledged to anybody, by any process, is found."""
    try:
        found = await request.app.state.orders.order(request.path_params["number"])
    except ClientError as error:
        return JSONResponse({"error": str(error)}, status_code=503)
    if found is None:
        return JSONResponse({"error": "no such order"}, status_code=404)
    return JSONResponse({"item": found[0], "count": found[1], "note": found[2]})


async def state(request: Request) -> Response:
    """For probes and tests: how far this copy is, and what its state is."""
    orders = request.app.state.orders
    await orders.read()
    applied, digest = orders.applied, await orders.digest()
    return JSONResponse({"applied": applied, "digest": digest.hex(), "notes": await orders.notes.stale()})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Everything that is open while requests are served; left on SIGTERM, when the last request is answered.

    Leaving it ends the session of this copy, then hands over what the node leads, then closes its logs.
    """
    number = int(os.environ["NODE_ID"])
    settings = NodeSettings(node_id=number, data_dir=Path(os.environ["DATA"]), store=os.environ["STORE"])
    async with Node(settings) as node:
        async with Admin(node.endpoints) as admin:
            # All nodes must be there before the topic is created, so that each gets a replica; later a majority
            # is enough.
            exists = "orders" in await admin.list_topics()
            await admin.wait_for_nodes(MAJORITY if exists else NODES)
        # The first process creates the topic; the others use it unchanged.
        async with replicate(
            Orders, node.endpoints, "orders", name=f"api-{number}", snapshot_every=2000, digest_every=200
        ) as app.state.orders:
            yield


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/orders", place, methods=["POST"]),
        Route("/stock", stock, methods=["POST"]),
        Route("/orders/{number}", show),
        Route("/state", state),
    ],
)


def main() -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(os.environ.get("PORT", "0"))))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    main()
