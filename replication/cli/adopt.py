"""`insync adopt`: a new cluster goes on with what a stopped Kafka has written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..core.wording import counted
from .clusters import Flag, Json, print_json, say
from .errors import CommandError, UsageError

if TYPE_CHECKING:
    from ..core.faces import AdoptedFolder, Adoption
    from ..node.recovery._adoption import Source, Surveyed


def adopt(
    *given: Path,
    from_kafka: tuple[Path, ...] = (),
    data_dir: tuple[Path, ...] = (),
    server_properties: Path | None = None,
    metadata: tuple[Path, ...] = (),
    was_compacted: tuple[str, ...] = (),
    store: str | None = None,
    evidence: Path | None = None,
    check: Annotated[Flag, Parameter(show_default=False)] = False,
    json: Json = False,
) -> int:
    """Make a cluster of what a stopped Kafka has written: topics, ids, settings, leader epochs, groups' offsets.

    Kafka (3.x or 4.x, KRaft) must be stopped, cleanly, on every broker. Its folders are read and copied, never
    written to. Every obstacle is named before anything is copied, and a run that fails leaves nothing
    behind. docs/kafka.md tells the steps, also for brokers on several machines.

    Example: `insync adopt --from-kafka /srv/kafka --server-properties server.properties --data-dir /srv/n1 --store sqlite:///srv/meta.db`

    Parameters
    ----------
    given
        Files that `--evidence` has written on the brokers' other machines.
    from_kafka
        A folder of the broker's log.dirs. Repeat it for several folders, and for several brokers.
    data_dir
        Where the copy is to be: the node's data folder, made here. One for each --from-kafka, in the same order.
    server_properties
        The broker's settings: topics inherit some of them, such as how long records are kept.
    metadata
        A folder with a copy of the cluster's metadata log (metadata.log.dir), where log.dirs has none.
    was_compacted
        A topic that was compacted once and is no more, so that offsets may be missing.
    store
        URL of an empty metadata store for the new cluster, e.g. sqlite:///srv/insync/meta.db.
    evidence
        For brokers on several machines: copy, and write into this file what the machine with --store has to know.
    check
        Read everything and name every obstacle; copy and write nothing.
    """
    sources = _sources(given, from_kafka, data_dir, store, evidence, check)
    if from_kafka and server_properties is None:
        raise UsageError("name the broker's settings with --server-properties: topics inherit from them")
    from ..node.recovery import _adoption as adoption

    settings = _properties(server_properties) if server_properties is not None else {}
    other = [each for path in given for each in adoption.read_evidence(path)]
    with adoption.kept_from_kafka(sources):
        found = _surveyed(sources, metadata, settings, was_compacted, json) if sources else []
        told = [*(each.evidence for each in found), *other]
        if evidence is None:
            planned = adoption.plan(told, was_compacted)
        if check:
            _say("could be adopted", told, planned, json)
        elif evidence is not None:
            _copy_only(found, evidence, json)
        else:
            assert store is not None
            _adopt(found, other, was_compacted, store, json)
    return 0


def _sources(
    given: tuple[Path, ...],
    from_kafka: tuple[Path, ...],
    data_dir: tuple[Path, ...],
    store: str | None,
    evidence: Path | None,
    check: bool,
) -> list[Source]:
    from ..node.recovery._adoption import Source

    if not from_kafka and not given:
        raise UsageError(
            "name the broker's folder with --from-kafka, or the files that --evidence has written"
        )
    if sum([check, store is not None, evidence is not None]) != 1:
        raise UsageError(
            "give one of --store (for the whole cluster), --evidence (of several machines) and --check"
        )
    if evidence is not None and not from_kafka:
        raise UsageError("--evidence tells of the folders that are named with --from-kafka")
    targets = data_dir if data_dir or not check else from_kafka
    if len(targets) != len(from_kafka):
        raise UsageError(
            f"{len(from_kafka)} --from-kafka and {len(data_dir)} --data-dir: each folder needs one"
        )
    return [Source(kafka=kafka, data_dir=data) for kafka, data in zip(from_kafka, targets, strict=True)]


def _properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as brokers' settings go: `name=value` or `name: value`, one to a line."""
    found = {}
    try:
        text = path.read_text("latin-1")  # as Java reads it
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {error.strerror}; name the broker's server.properties"
        ) from error
    # Not `splitlines`: with this encoding it ends lines within letters of UTF-8.
    for line in text.replace("\\\n", "").split("\n"):
        bare = line.strip()
        if bare and bare[0] not in "#!":
            at = min((place for place in (bare.find("="), bare.find(":")) if place >= 0), default=len(bare))
            found[bare[:at].strip()] = bare[at + 1 :].strip()
    return found


def _surveyed(
    sources: list[Source],
    metadata: tuple[Path, ...],
    settings: dict[str, str],
    formerly: tuple[str, ...],
    quiet: bool,
) -> list[Surveyed]:
    from ..node.recovery import _adoption as adoption
    from .log import all_log_bytes, progress

    total = sum(all_log_bytes(each.kafka) for each in sources if each.kafka.is_dir())
    with progress(total, "reading", quiet=quiet) as advance:
        return adoption.survey(sources, metadata, settings, formerly, advance)


def _copy_only(found: list[Surveyed], evidence: Path, json: bool) -> None:
    from ..node.recovery import _adoption as adoption

    with adoption.Copies(found) as copies:
        told = _copied(copies, found, json)
        copies.name()
        adoption.write_evidence(evidence, told)
    _say(f"copied; give {evidence} to `insync adopt --store` on one machine", told, None, json)


def _adopt(
    found: list[Surveyed], other: list[AdoptedFolder], formerly: tuple[str, ...], store: str, json: bool
) -> None:
    from ..metadata import open_store
    from ..node.recovery import _adoption as adoption
    from .running import run

    async def look() -> None:
        async with open_store(store) as opened:
            await adoption.check_store(opened)

    async def write(planned: Adoption, copies: adoption.Copies) -> None:
        async with open_store(store) as opened:
            await adoption.write_store(opened, planned, copies)
            # Before anything else is waited for: a signal that comes now must not undo what is done.
            done.append(planned)

    done: list[Adoption] = []
    _finish(run(look))
    # Not under trio, where a long copy would keep the signal that is to end it waiting.
    with adoption.Copies(found) as copies:
        told = [*_copied(copies, found, json), *other]
        planned = adoption.plan(told, formerly)
        status = run(lambda: write(planned, copies))
        if not done:
            _finish(status)
    _say("adopted", told, planned, json)


def _finish(status: int) -> None:
    if status:
        raise CommandError("interrupted: nothing was adopted, and Kafka's folders are as they were")


def _copied(copies: Any, found: list[Surveyed], quiet: bool) -> list[AdoptedFolder]:
    from .log import progress

    total = sum(log.size_bytes for each in found for log in each.foreign.logs)
    with progress(total, "copying", quiet=quiet) as advance:
        copied: list[AdoptedFolder] = copies.make(advance)
        return copied


def _say(done: str, told: list[AdoptedFolder], planned: Adoption | None, json: bool) -> None:
    brokers = sorted({each.folder.node_id for each in told})
    logs = sum(len(each.folder.logs) for each in told)
    line: dict[str, Any] = {"cluster_id": told[0].folder.cluster_id, "nodes": brokers, "logs": logs}
    if planned is not None:
        line |= {
            "topics": len(planned.topics),
            "partitions": len(planned.leaders),
            "without_effect": list(planned.without_effect),
        }
    if json:
        print_json(line)
        return
    say(f"{done}: cluster {line['cluster_id']}, nodes {', '.join(map(str, brokers))}, {counted(logs, 'log')}")
    if planned is not None:
        say(f"{counted(len(planned.topics), 'topic')} with {counted(len(planned.leaders), 'partition')}")
        for each in planned.without_effect:
            say(f"a setting without effect here was left out: {each}", to=sys.stderr)
