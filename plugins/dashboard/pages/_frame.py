"""The frame of all pages: navigation, a line on the cluster as a whole, and how they are kept new."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import attrs
from markupsafe import Markup
from nicegui import Client, ui

from ....replication.errors import ReplicationError
from .._findings import ERROR, worst
from .._guard import LOGIN, SESSION
from .._login import Login
from .._watcher import SLOW, Watcher
from ._markup import joined, moment

CSS = files(__package__).joinpath("style.css").read_text("utf-8")
PAGES = (
    ("Cluster", "/"),
    ("Topics", "/topics"),
    ("Records", "/records"),
    ("Groups", "/groups"),
    ("Transactions", "/transactions"),
    ("Why", "/why"),
    ("Do", "/do"),
)
REFRESH = 0.5
"""Seconds between two looks at whether there is anything new to show."""
MOST_UNCONNECTED = 50
"""Pages that were sent and have no WebSocket yet. One takes up to 0.5 MiB; the library keeps it for a minute."""


_SESSION_END = f"""<script>
setInterval(async () => {{
  if (!window.socket || window.socket.connected) return;
  try {{ if ((await fetch("{SESSION}", {{cache: "no-store"}})).status === 401) location.reload(); }} catch {{}}
}}, 1000);
</script>"""
"""The page's content goes with the session: the login takes its place."""
_LOG_OUT = Markup('<form method="post" action="/logout"><button class="plain">Log out{}</button></form>')


class ChangesNotAllowedError(ReplicationError):
    """The dashboard was started to look and not to change."""


@attrs.frozen(kw_only=True)
class Site:
    """The source of the pages. allow_changes: whether the cluster may be changed from here."""

    watcher: Watcher
    allow_changes: bool = False

    async def changing(self, login: Login | None, operation: str) -> None:
        """To be asked right before anything is changed, whatever the page has offered.

        Raises:
          ChangesNotAllowedError: The cluster may not be changed from here.
          LoginError: The user may not do it now.
          ReplicationError: The cluster does not say.
        """
        if not self.allow_changes:
            raise ChangesNotAllowedError(
                "nothing can be changed from here: start the dashboard with --allow-changes for that"
            )
        if login is not None:
            await login.check(self.watcher.admin, operation)


def login() -> Login | None:
    """The login of the page that is being built; None where nobody has to log in."""
    request = ui.context.client.request
    found: Login | None = request.scope.get(LOGIN) if request is not None else None
    return found


@contextmanager
def frame(site: Site, title: str, here: str) -> Iterator[None]:
    """A page: `with frame(site, "Topics", "/topics"): ...`."""
    _forget_unconnected()
    ui.add_css(CSS)
    ui.colors(primary="#0757b8", negative="#a40e26")
    ui.page_title(f"{title} - insync")
    paused = {"live": True}
    ui.html('<a class="skip" href="#main">Skip to the content</a>', sanitize=False)
    with ui.element("header").classes("top"):
        ui.html(_navigation(here), sanitize=False, tag="nav").props('aria-label="Pages"')
        ui.checkbox("Live", value=True, on_change=lambda event: paused.update(live=bool(event.value))).props(
            'dense aria-label="Keep this page up to date"'
        )
        if (who := login()) is not None:
            ui.add_head_html(_SESSION_END)
            ui.html(_LOG_OUT.format(f" ({who.name})" if who.user is not None else ""), sanitize=False)
    live(site, lambda: banner(site.watcher), paused)
    with ui.element("main").props("id=main tabindex=-1"):
        ui.html(Markup("<h1>{}</h1>").format(title), sanitize=False)
        _PAUSED.append(paused)
        try:
            yield
        finally:
            _PAUSED.pop()


def _forget_unconnected() -> None:
    """Programs that read pages never connect. A browser whose page was forgotten loads it again."""
    sent = sorted(each.created for each in Client.instances.values() if not each.has_socket_connection)
    if len(sent) > MOST_UNCONNECTED:
        Client.prune_instances(client_age_threshold=time.time() - sent[-MOST_UNCONNECTED - 1])


_PAUSED: list[dict[str, bool]] = []
"""Of the page that is being built: pages are built one after the other, each without a pause in between."""


def live(site: Site, render: Callable[[], Markup], paused: dict[str, bool] | None = None) -> None:
    """Show what `render` gives, and again whenever the watcher knows more and that looks different."""
    switch = paused if paused is not None else (_PAUSED[-1] if _PAUSED else {"live": True})
    text = str(render())
    shown = ui.html(text, sanitize=False)
    version = site.watcher.version

    def refresh() -> None:
        nonlocal version, text
        if version == site.watcher.version or not switch["live"]:
            return
        version = site.watcher.version
        fresh = str(render())
        if fresh != text:
            text = fresh
            shown.set_content(fresh)

    ui.timer(REFRESH, refresh)


def topic_select(site: Site, value: str = "") -> ui.select:
    """A list of the topics that there are, with those that come while the page is open."""

    def names() -> list[str]:
        return list(site.watcher.look.topics) if site.watcher.look is not None else []

    chosen = value if value in names() else None
    select = ui.select(names(), label="Topic", value=chosen, with_input=True).style("min-width:12em")
    follow(site, select, names)
    return select


def follow(site: Site, select: ui.select, options: Callable[[], list[Any] | dict[Any, str]]) -> None:
    """Keep a list as long as what the cluster has. A choice stays chosen while it is there."""
    version = -1

    def refresh() -> None:
        nonlocal version
        if version == site.watcher.version:
            return
        version = site.watcher.version
        there = options()
        if there != select.options:
            chosen = select.value
            if isinstance(chosen, list):
                kept: object = [each for each in chosen if each in there]
            else:
                kept = chosen if chosen in there else None
            select.set_options(there, value=kept)

    ui.timer(REFRESH, refresh)


def _navigation(here: str) -> Markup:
    links = joined(
        (
            Markup('<a href="{}"{}>{}</a>').format(
                path, Markup(' aria-current="page"') if path == here else "", name
            )
            for name, path in PAGES
        ),
        " &nbsp; ",
    )
    return Markup("<strong>insync</strong> &nbsp; {}").format(links)


def banner(watcher: Watcher) -> Markup:
    """One line on the cluster: that it is silent and since when, or what is wrong, or nothing."""
    seen = (
        Markup(" What is shown is of {}.").format(moment(watcher.look.at))
        if watcher.look is not None
        else Markup(" It has not answered yet.")
    )
    if watcher.error:
        return Markup(
            '<p class="banner error" role="alert">The cluster has not answered since {}: {}.{} '
            "The dashboard keeps asking.</p>"
        ).format(moment(watcher.failing_since), watcher.error.rstrip("."), seen)
    if watcher.slow_since:
        return Markup(
            '<p class="banner warning" role="status">The cluster answers slowly: '
            "a query has been running since {}.{}</p>"
        ).format(moment(watcher.slow_since), seen)
    if watcher.look is None:
        return Markup('<p class="banner warning" role="status">Asking the cluster ...</p>')
    if watcher.look.took > SLOW:
        return Markup(
            '<p class="banner warning" role="status">The cluster answers slowly: a query takes {} s.{}</p>'
        ).format(f"{watcher.look.took:.0f}", seen)
    if watcher.findings:
        kind = "error" if worst(watcher.findings) == ERROR else "warning"
        count = len(watcher.findings)
        more = f", and {count - 1:,} more" if count > 1 else ""
        return Markup(
            '<p class="banner {}" role="status">{}{}. <a href="/why">Why, and what to do</a></p>'
        ).format(kind, watcher.findings[0].title, more)
    return Markup("")
