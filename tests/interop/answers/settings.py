"""Settings, changed one by one and all at once, and listed; limits; credentials of users."""

from __future__ import annotations

from typing import Any

from insync.plugins.kafka.protocol.apis import Api

from .cluster import Cluster, plain
from .job import Tell

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


async def _values(cluster: Cluster, name: str, *keys: str) -> Any:
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": list(keys)}
    told = await cluster.ask(None, Api.DESCRIBE_CONFIGS, resources=[resource])
    return sorted([each.name, each.value, each.config_source] for each in told.results[0].configs)


async def increments(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("altered", config={"retention.ms": "1000"})

    async def alter(
        title: str, *ops: tuple[str, int, str | None], kind: int = TOPIC, name: str = "altered", **more: Any
    ) -> None:
        configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        told = await cluster.ask(None, Api.INCREMENTAL_ALTER_CONFIGS, resources=[resource], **more)
        tell(title, plain(told))

    async def shows(key: str, *wanted: list[Any]) -> None:
        """Wait until it is shown, then tell what is."""
        told = await cluster.until(
            lambda: _values(cluster, "altered", key), lambda told: [each[1:] for each in told] == list(wanted)
        )
        tell(f"{key} then", told)

    policy = "cleanup.policy"
    await alter("append compact", (policy, APPEND, "compact"))
    await shows(policy, ["delete,compact", 1])
    await alter("append it again", (policy, APPEND, "compact"))
    await shows(policy, ["delete,compact", 1])
    await alter("subtract what is not in it", (policy, SUBTRACT, "burn"))
    await shows(policy, ["delete,compact", 1])
    await alter("subtract delete", (policy, SUBTRACT, "delete"))
    await shows(policy, ["compact", 1])
    await alter("append one that is none", (policy, APPEND, "burn"))
    await alter("append two", (policy, APPEND, "delete,compact"))
    await shows(policy, ["compact,delete", 1])
    await alter("append null", (policy, APPEND, None))
    await alter("subtract null", (policy, SUBTRACT, None))
    await alter("set null", (policy, SET, None))
    await alter("delete", (policy, DELETE, None))
    await shows(policy, ["delete", 5])
    await alter("delete again", (policy, DELETE, None))
    await alter("delete with a value", (policy, DELETE, "compact"))
    await alter("append to a number", ("retention.ms", APPEND, "1"))
    await alter("subtract from a number", ("retention.ms", SUBTRACT, "1"))
    await alter("a key twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    await alter("set and deleted", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    await alter("no such operation", ("retention.ms", 4, "1"))
    await alter("operation -1", ("retention.ms", -1, "1"))
    await alter("no such setting", ("no.such", SET, "1"))
    await alter("delete no such setting", ("no.such", DELETE, None))
    await alter("append to no such setting", ("no.such", APPEND, "1"))
    await alter("one good, one bad", ("retention.ms", SET, "5"), ("segment.bytes", SET, "x"))
    await shows("retention.ms", ["1000", 1])
    await alter("only tried", ("retention.ms", SET, "5"), validate_only=True)
    await alter("only tried, bad", ("retention.ms", SET, "x"), validate_only=True)
    await alter("only tried, of nothing", ("retention.ms", SET, "5"), name="nowhere", validate_only=True)
    await shows("retention.ms", ["1000", 1])
    await alter("nothing to do")
    await alter("of no topic", ("retention.ms", SET, "5"), name="nowhere")
    await alter("of a bad name", ("retention.ms", SET, "5"), name="a b")
    await alter("of an empty name", ("retention.ms", SET, "5"), name="")
    await alter("of an unknown kind", ("retention.ms", SET, "5"), kind=3)
    await alter("of kind 0", ("retention.ms", SET, "5"), kind=0)
    await alter("of a broker that is none", ("retention.ms", SET, "5"), kind=BROKER, name="x")
    await alter(
        "of a broker that is away", ("leader.replication.throttled.rate", SET, "5"), kind=BROKER, name="99"
    )
    resource = {"resource_type": TOPIC, "resource_name": "altered", "configs": []}
    told = await cluster.ask(None, Api.INCREMENTAL_ALTER_CONFIGS, resources=[resource, resource])
    tell("a topic twice", plain(told))


async def replacements(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("replaced", config={"retention.ms": "1000", "segment.ms": "5000"})

    async def alter(title: str, *given: tuple[str, str | None], name: str = "replaced", **more: Any) -> None:
        configs = [{"name": key, "value": value} for key, value in given]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        tell(title, plain(await cluster.ask(None, Api.ALTER_CONFIGS, resources=[resource], **more)))

    async def shows(*wanted: list[Any]) -> None:
        keys = ("retention.ms", "segment.ms", "cleanup.policy")
        told = await cluster.until(
            lambda: _values(cluster, "replaced", *keys), lambda told: told == sorted(wanted)
        )
        tell("then", told)

    await alter("a null", ("retention.ms", None))
    await alter("no such setting", ("no.such", "1"))
    await alter("a bad value", ("retention.ms", "x"))
    await alter("only tried", ("retention.ms", "7"), validate_only=True)
    await alter("a key twice", ("retention.ms", "7"), ("retention.ms", "8"))
    await alter("of no topic", ("retention.ms", "7"), name="nowhere")
    await alter("one of two", ("retention.ms", "2000"))
    await shows(["retention.ms", "2000", 1], ["segment.ms", "604800000", 5], ["cleanup.policy", "delete", 5])
    await alter("none")
    await shows(
        ["retention.ms", "604800000", 5], ["segment.ms", "604800000", 5], ["cleanup.policy", "delete", 5]
    )


async def described(cluster: Cluster, tell: Tell) -> None:
    await cluster.make("told", config={"retention.ms": "1000"})

    async def describe(title: str, kind: int, name: str, keys: list[str] | None, **more: Any) -> None:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        told = await cluster.ask(None, Api.DESCRIBE_CONFIGS, resources=[resource], **more)
        tell(title, plain(told))

    await describe("one", TOPIC, "told", ["retention.ms"])
    await describe("one with synonyms", TOPIC, "told", ["cleanup.policy"], include_synonyms=False)
    await describe("what is not", TOPIC, "told", ["no.such"])
    await describe("one and what is not", TOPIC, "told", ["no.such", "segment.ms"])
    await describe("no topic", TOPIC, "nowhere", None)
    await describe("a bad name", TOPIC, "a b", None)
    await describe("an empty name", TOPIC, "", None)
    await describe("no broker", BROKER, "99", None)
    await describe("a broker that is none", BROKER, "x", None)
    await describe("a kind that is none", 3, "told", None)
    await describe("kind 0", 0, "told", None)
    resource = {"resource_type": TOPIC, "resource_name": "told", "configuration_keys": ["retention.ms"]}
    tell("twice", plain(await cluster.ask(None, Api.DESCRIBE_CONFIGS, resources=[resource] * 2)))

    async def types(title: str, *kinds: int, version: int = 1) -> None:
        told = await cluster.ask(None, Api.LIST_CONFIG_RESOURCES, version, resource_types=list(kinds))
        found = sorted(
            [each.resource_type, each.resource_name]
            for each in told.config_resources
            if each.resource_type != TOPIC or each.resource_name == "told"
        )
        tell(title, [told.error_code, found])

    await types("all resources")
    await types("topics", TOPIC)
    await types("brokers", BROKER)
    await types("loggers", LOGGER)
    await types("client metrics", METRICS)
    await types("groups", GROUP)
    await types("topics twice", TOPIC, TOPIC)
    await types("topics and brokers", TOPIC, BROKER)
    await types("a kind that is none", 3)
    await types("kind 0", 0)
    await types("a kind and one that is none", TOPIC, 64)
    await types("version 0", version=0)


async def limits(cluster: Cluster, tell: Tell) -> None:
    Entity = list[tuple[str, str | None]]

    def of(entity: Entity) -> list[dict[str, Any]]:
        return [{"entity_type": kind, "entity_name": name} for kind, name in entity]

    async def alter(title: str, entity: Entity, *ops: tuple[str, float | None], **more: Any) -> None:
        wanted = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops]
        told = await cluster.ask(
            None, Api.ALTER_CLIENT_QUOTAS, entries=[{"entity": of(entity), "ops": wanted}], **more
        )
        tell(title, plain(told))

    async def describe(title: str, *components: tuple[str, int, str | None], strict: bool = False) -> None:
        parts = [{"entity_type": k, "match_type": t, "match": m} for k, t, m in components]
        told = await cluster.ask(None, Api.DESCRIBE_CLIENT_QUOTAS, components=parts, strict=strict)
        tell(title, plain(told))

    rate = "producer_byte_rate"
    await describe("none yet")
    await alter("a user", [("user", "u")], (rate, 1000.0), ("consumer_byte_rate", 2000.0))
    await alter("a client id", [("client-id", "c")], (rate, 3000.0))
    await alter("all users", [("user", None)], (rate, 4000.0))
    await alter("all client ids", [("client-id", None)], (rate, 5000.0))
    await alter("a name with signs", [("user", "ü/=%")], (rate, 6000.0))

    async def all_there() -> Any:
        return await cluster.ask(None, Api.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)

    await cluster.until(all_there, lambda told: len(told.entries or ()) == 5)
    await describe("all")
    await describe("all, strictly", strict=True)
    for kind in ("user", "client-id"):
        for strict in (False, True):
            await describe(f"any {kind}, {strict}", (kind, 2, None), strict=strict)
            await describe(f"the default {kind}, {strict}", (kind, 1, None), strict=strict)
            await describe(f"u as {kind}, {strict}", (kind, 0, "u"), strict=strict)
            await describe(f"nobody as {kind}, {strict}", (kind, 0, "nobody"), strict=strict)
    await describe("both", ("user", 2, None), ("client-id", 2, None))
    await describe("a kind twice", ("user", 0, "u"), ("user", 0, "v"))
    await describe("addresses", ("ip", 2, None))
    await describe("a kind that is none", ("house", 0, "x"))
    await describe("an empty kind", ("", 0, "x"))
    await describe("a match that is none", ("user", 3, None))
    await describe("exactly nothing", ("user", 0, None))
    await describe("a default with a name", ("user", 1, "u"))
    await describe("any with a name", ("user", 2, "u"))
    await describe("an exact empty name", ("user", 0, ""))
    await alter("remove one", [("user", "u")], (rate, None))
    await alter("remove what is not", [("user", "u")], ("request_percentage", None))
    await alter("remove of nobody", [("user", "nobody")], (rate, None))
    await alter("set and removed", [("user", "u")], (rate, 5.0), (rate, None))
    await alter("set twice", [("user", "u")], (rate, 5.0), (rate, 6.0))
    await alter("no limit", [("user", "u")])
    await alter("a key that is none", [("user", "u")], ("no.such", 1.0))
    await alter("an empty key", [("user", "u")], ("", 1.0))
    await alter("a rate of 0", [("user", "u")], (rate, 0.0001))
    await alter("a rate below 0", [("user", "u")], (rate, -1.0))
    await alter("a broken rate", [("user", "u")], (rate, 1.5))
    await alter("a rate that is none", [("user", "u")], (rate, float("nan")))
    await alter("a rate without end", [("user", "u")], (rate, float("inf")))
    await alter("a rate beyond 64 bits", [("user", "u")], (rate, 1e300))
    await alter("no entity", [], (rate, 1.0))
    await alter("a kind that is none", [("house", "x")], (rate, 1.0))
    await alter("an empty name", [("user", "")], (rate, 1.0))
    await alter("a kind twice", [("user", "a"), ("user", "b")], (rate, 1.0), validate_only=True)
    await alter("only tried", [("user", "tried")], (rate, 1.0), validate_only=True)
    await alter("only tried, bad", [("user", "tried")], ("no.such", 1.0), validate_only=True)
    entry = {"entity": of([("user", "u")]), "ops": [{"key": rate, "value": 7.0}]}
    told = await cluster.ask(None, Api.ALTER_CLIENT_QUOTAS, entries=[entry, entry])
    tell("an entity twice", plain(told))
    tell("nothing to do", plain(await cluster.ask(None, Api.ALTER_CLIENT_QUOTAS, entries=[])))
    await alter("set again", [("user", "u")], (rate, 7.0))
    await cluster.until(
        all_there,
        lambda told: (
            [["consumer_byte_rate", 2000.0], [rate, 7.0]]
            in [sorted([v.key, v.value] for v in each.values) for each in told.entries or ()]
        ),
    )
    await describe("what is left")


async def credentials(cluster: Cluster, tell: Tell) -> None:
    def given(
        name: str = "sam", mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt" * 4
    ) -> dict[str, Any]:
        salted = b"p" * (32 if mechanism == 1 else 64)
        return {
            "name": name,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted,
        }

    async def alter(
        title: str, *upsertions: dict[str, Any], gone: list[tuple[str, int]] | None = None
    ) -> None:
        told = await cluster.ask(
            None,
            Api.ALTER_USER_SCRAM_CREDENTIALS,
            deletions=[{"name": name, "mechanism": mechanism} for name, mechanism in gone or ()],
            upsertions=list(upsertions),
        )
        tell(title, plain(told))

    async def users(*names: str) -> Any:
        told = await cluster.ask(
            None, Api.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": each} for each in names]
        )
        for each in told.results:
            each.credential_infos.sort(key=lambda info: info.mechanism)
        return told

    await alter("4096 iterations", given())
    await alter("4095 iterations", given(iterations=4095))
    await alter("16384 iterations", given(iterations=16384))
    await alter("16385 iterations", given(iterations=16385))
    await alter("0 iterations", given(iterations=0))
    await alter("-1 iterations", given(iterations=-1))
    await alter("SHA-512", given(mechanism=2, iterations=5000))
    await alter("mechanism 0", given(mechanism=0))
    await alter("mechanism 3", given(mechanism=3))
    await alter("no name", given(name=""))
    await alter("no salt", given(name="bare", salt=b""))
    await alter("no password", {**given(name="bare"), "salted_password": b""})
    await alter("a short password", {**given(name="bare"), "salted_password": b"x"})
    await alter("a name with signs", given(name="a=b,c"))
    await alter("a mechanism twice", given(), given())
    await alter("set and removed", given(), gone=[("sam", 1)])
    await alter("set and another removed", given(name="pam"), gone=[("pam", 2)])
    await alter("nothing to do")
    await cluster.until(
        lambda: users("sam"),
        lambda told: [each.iterations for each in told.results[0].credential_infos] == [16384, 5000],
    )
    tell("sam", plain(await users("sam")))
    tell("nobody", plain(await users("nobody")))
    tell("sam twice", plain(await users("sam", "sam")))
    tell("sam and nobody", plain(await users("sam", "nobody")))
    tell("an empty name", plain(await users("")))
    await alter("remove what is not", gone=[("nobody", 1)])
    await alter("remove mechanism 0", gone=[("sam", 0)])
    await alter("remove twice", gone=[("sam", 1), ("sam", 1)])
    await alter("remove one", gone=[("sam", 1)])
    await cluster.until(lambda: users("sam"), lambda told: len(told.results[0].credential_infos) == 1)
    await alter("remove it again", gone=[("sam", 1)])
    await alter("remove the other", gone=[("sam", 2)])
    await cluster.until(lambda: users("sam"), lambda told: told.results[0].error_code != 0)
    tell("sam then", plain(await users("sam")))


JOBS = {
    "settings changed": increments,
    "settings replaced": replacements,
    "settings told": described,
    "limits": limits,
    "credentials": credentials,
}
