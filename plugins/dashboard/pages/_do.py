"""Changes: each form makes a plan, shows what it will do, and does it when that is confirmed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
from markupsafe import Markup
from nicegui import ui

from ....replication.asyncio import Admin
from ....replication.cli.clusters import moment
from ....replication.cli.watching.measures import copied
from ....replication.core.types import Value
from ....replication.errors import ReplicationError
from ....transport import TransportError
from .. import _plans as plans
from .._login import Login
from .._look import Look
from .._watcher import Watcher
from ._frame import Site, follow, live, topic_select
from ._markup import joined, nodes, note, section, table, topic_link
from ._records import produce_form

log = logging.getLogger("insync.dashboard")

Make = Callable[[Admin, Look], Awaitable[plans.Plan]]

_RESETS = {
    "earliest": "the beginning",
    "latest": "the end",
    "offset": "offset ...",
    "time": "time ...",
    "shift": "back or ahead by ...",
}


def do_page(site: Site, login: Login | None = None) -> None:
    """All forms; or why there are none. login: who looks at it, if one has to log in."""
    live(site, lambda: section("Moves under way", moves(site.watcher)))
    if not site.allow_changes:
        ui.html(
            note("Nothing can be changed from here: start the dashboard with --allow-changes for that."),
            sanitize=False,
        )
        return
    if login is not None and not login.may("admin"):
        ui.html(
            note(f"{login.name} may read and not change: changes need a rule that allows admin."),
            sanitize=False,
        )
        return
    asker = _Asker(site, login)
    known = len(_node_ids(site.watcher)) or 3

    with _form("Create a topic"):
        name, partitions, replicas = (
            ui.input("Name"),
            _whole("Partitions", 3),
            _whole("Replicas", min(3, known)),
        )
        config = ui.input("Settings: name=value ...").style("min-width:20em")
        asker.button(
            "Plan: create",
            lambda: _of_look(
                plans.create_topic,
                str(name.value or ""),
                _number(partitions),
                _number(replicas),
                _settings(config.value),
            ),
        )
    with _form("Change settings of a topic"):
        altered = topic_select(site)
        changed, reset = (
            ui.input("Settings: name=value ...").style("min-width:20em"),
            ui.input("Back to default: names").style("min-width:14em"),
        )
        asker.button(
            "Plan: change settings",
            lambda: _of_look(
                plans.alter_config,
                _chosen(altered),
                _settings(changed.value),
                str(reset.value or "").split(),
            ),
        )
    with _form("Elect leaders"):
        elected, unclean = topic_select(site), ui.checkbox("Uncleanly: records may be lost")
        asker.button(
            "Plan: elect",
            lambda: _of_look(partial(plans.elect, unclean=bool(unclean.value)), _chosen(elected)),
        )
    with _form("Move a topic"):
        moved, targets, limit = (
            topic_select(site),
            _node_select(site, "To nodes", "min-width:12em", multiple=True),
            _whole("Bytes a second at most (0: no limit)", 0),
        )
        asker.button(
            "Plan: move",
            lambda: _of_look(
                plans.reassign,
                _chosen(moved),
                [int(each) for each in targets.value or ()],
                _number(limit),
            ),
        )
        asker.button("Plan: cancel moves", lambda: _of_look(plans.cancel_moves, _chosen(moved)))
    with _form("Drain a node"):
        drained, slowly = (
            _node_select(site, "Node", "min-width:6em"),
            _whole("Bytes a second at most (0: no limit)", 0),
        )
        asker.button("Plan: drain", lambda: _of_look(plans.drain, int(_chosen(drained)), _number(slowly)))
    with _form("Reset the offsets of a group"):
        group, to = (
            ui.input("Group").style("min-width:12em"),
            ui.select(_RESETS, label="To", value="earliest"),
        )
        amount = ui.input("Offset, time or number of records").style("min-width:20em")
        asker.button(
            "Plan: reset",
            lambda: _of_admin(
                plans.reset_group,
                str(group.value or ""),
                to.value,
                _amount(to.value, str(amount.value or "").strip()),
            ),
        )
        asker.button("Plan: delete group", lambda: _of_admin(plans.delete_group, str(group.value or "")))
    with _form("Abort a transaction that hangs"):
        hanging = _hanging_select(site)
        asker.button("Plan: abort", lambda: _of_admin(partial(_abort, site.watcher), _chosen(hanging)))
    with _form("Delete a topic"):
        deleted = topic_select(site)
        asker.button("Plan: delete", lambda: _of_look(plans.delete_topic, _chosen(deleted)))
    if login is None or login.may("produce"):
        with _form("Produce a record"):
            produce_form(site, login)


def _hanging_select(site: Site) -> ui.select:
    """A list of what hangs, as was found last."""

    def found() -> dict[str, str]:
        return {
            f"{each.topic} {each.partition} {each.start_offset}": (
                f"{each.topic}-{each.partition} from offset {each.start_offset:,}"
            )
            for each in site.watcher.transactions.hanging
        }

    select = ui.select(found(), label="Which").style("min-width:16em")
    follow(site, select, found)
    return select


async def _abort(watcher: Watcher, admin: Admin, chosen: str) -> plans.Plan:
    topic, partition, start = chosen.rsplit(" ", 2)
    plan = await plans.abort_transaction(admin, topic, int(partition), int(start))

    async def carry_out() -> str:
        said = await plan.carry_out()
        await watcher.search_hanging(admin)
        return said

    return attrs.evolve(plan, carry_out=carry_out)


class _Asker:
    """Makes plans and has them confirmed."""

    def __init__(self, site: Site, login: Login | None) -> None:
        self._site = site
        self._login = login
        self._dialog = ui.dialog().props("persistent")
        self._asking = False

    def button(self, text: str, read: Callable[[], Make]) -> None:
        """A button that makes a plan, and the place where it is said what became of it.

        read: takes what the fields hold; a plan that is made once more is made of the same.
        """

        async def pressed() -> None:
            # There is one dialog: an answer to a second plan would be one to the first as well.
            if self._asking:
                said.set_text("another plan waits for an answer: answer that first")
                return
            self._asking = True
            try:
                await self._ask(read(), said)
            except (ReplicationError, TransportError, ValueError, TypeError) as error:
                said.set_text(f"{error}")
            finally:
                self._asking = False

        ui.button(text, on_click=pressed)
        said = ui.label("").props('role="status"')

    async def _ask(self, make: Make, said: ui.label) -> None:
        """Until a plan was carried out, or left."""
        said.set_text("asking the cluster ...")
        plan, changed = await self._made(make), False
        while await self._confirmed(plan, changed=changed):
            said.set_text("doing it ...")
            try:
                await self._site.changing(self._login, "admin")
                # While one reads it, somebody else may have done something.
                now = await self._made(make)
                if now.basis == plan.basis:
                    log.info(
                        "%s: %s", self._login.name if self._login is not None else "somebody", plan.title
                    )
                    said.set_text(await plan.carry_out())
                    return
            except (ReplicationError, TransportError) as error:
                said.set_text(f"not done: {error}")
                return
            plan, changed = now, True
        said.set_text("left as it was")

    async def _made(self, make: Make) -> plans.Plan:
        watcher = self._site.watcher
        admin = watcher.admin
        if admin is None:
            raise plans.BadPlanError("the cluster does not answer: nothing can be planned")
        return await make(admin, await watcher.fresh(admin))

    async def _confirmed(self, plan: plans.Plan, *, changed: bool) -> bool:
        """changed: it is shown again, because it is another one than before."""
        self._dialog.clear()
        with self._dialog, ui.card().style("max-width:90vw;min-width:24em"):
            ui.html(_plan(plan, changed=changed), sanitize=False)
            with ui.row():
                ui.button(
                    "Do it",
                    on_click=lambda: self._dialog.submit(True),
                    color="negative" if plan.dangerous else "primary",
                )
                ui.button("Leave it", on_click=lambda: self._dialog.submit(False)).props("outline autofocus")
        return bool(await self._dialog)


def _plan(plan: plans.Plan, *, changed: bool = False) -> Markup:
    lines = joined(Markup("<li>{}</li>").format(line) for line in plan.lines)
    warning = Markup('<p class="banner error">This cannot be undone.</p>') if plan.dangerous else ""
    told = (
        Markup(
            '<p class="banner warning">Nothing was done: the cluster has changed, and so has the plan.</p>'
        )
        if changed
        else ""
    )
    return Markup("<h2>{}</h2>{}{}<ul>{}</ul>").format(plan.title, told, warning, lines)


def moves(watcher: Watcher) -> Markup:
    """Partitions that are being moved, and how far their new replicas are."""
    look = watcher.look
    if look is None:
        return note("The cluster has not answered yet.")
    moving = [
        (topic.name, each)
        for topic in look.topics.values()
        for each in topic.partitions
        if each.adding or each.removing
    ]
    shares = copied({(name, each.partition): each.adding for name, each in moving}, look.leading.values())
    rows = []
    for name, each in moving:
        there, wanted = shares.get((name, each.partition), (0, 0))
        share = f"{100 * there / wanted:.0f} %" if wanted else "no records"
        rows.append((topic_link(name), each.partition, nodes(each.adding), nodes(each.removing), share))
    return table(
        "New replicas fetch all records before the old ones go.",
        ("Topic", "Partition", "To", "From", "Copied"),
        rows[:200],
    )


class _form:
    """A section with a heading and a row of fields."""

    def __init__(self, title: str) -> None:
        ui.html(Markup("<h2>{}</h2>").format(title), sanitize=False)
        self._row = ui.row().classes("items-end").props(f'role=group aria-label="{title}"')

    def __enter__(self) -> None:
        self._row.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._row.__exit__(*failure)


def _whole(label: str, value: int) -> ui.number:
    return ui.number(label, value=value, min=0, precision=0).style(f"min-width:{len(label) // 2 + 4}em")


def _node_ids(watcher: Watcher) -> list[int]:
    return sorted(watcher.look.reports) if watcher.look is not None else []


def _node_select(site: Site, label: str, style: str, *, multiple: bool = False) -> ui.select:
    select = ui.select(_node_ids(site.watcher), label=label, multiple=multiple).style(style)
    follow(site, select, lambda: _node_ids(site.watcher))
    return select


def _of_look(make: Callable[..., Awaitable[plans.Plan]], *given: object) -> Make:
    return lambda admin, look: make(admin, look, *given)


def _of_admin(make: Callable[..., Awaitable[plans.Plan]], *given: object) -> Make:
    return lambda admin, _: make(admin, *given)


def _chosen(select: ui.select) -> str:
    if select.value is None:
        label = str(select.props["label"]).lower()
        raise plans.BadPlanError(f"choose {_WHAT.get(label, label)} first")
    return str(select.value)


_WHAT = {
    "topic": "a topic",
    "node": "a node",
    "which": "a hanging transaction (the list is empty while none hangs)",
}


def _number(field: ui.number) -> int:
    if field.value is None:
        raise plans.BadPlanError(f"{field.props['label']}: give a whole number")
    return int(field.value)


def _settings(text: object) -> dict[str, Value]:
    """name=value pairs; the cluster says which names there are."""
    from ....replication.cli.topic import setting

    return dict(setting(each) for each in str(text or "").split())


def _amount(to: str, text: str) -> int | None:
    """Raises `BadPlanError` for what is no such number, `UsageError` for what is no time."""
    if to in ("earliest", "latest"):
        return None
    if to == "time":
        return moment("time", text)
    if not text.removeprefix("-").isdecimal():
        raise plans.BadPlanError(f"{text!r} is not a number: give an offset, or a number of records")
    return int(text)
