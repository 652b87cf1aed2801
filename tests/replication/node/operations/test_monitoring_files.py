"""The dashboard for Grafana and the alert rules ask for metrics and labels that nodes have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from insync.replication import Admin, Node, Producer

from ..test_cluster import settings
from .scraping import scrape

FOLDER = Path(__file__).parents[4] / "docs" / "monitoring"
_NAME = re.compile(r"\b(?:insync|process)_[a-z_]+\b")
_LABELS = re.compile(r"\bby \(([a-z, ]+)\)|\{([a-z]+)=|\{\{(?:\s*\$labels\.)?([a-z]+)\s*\}\}")
_GIVEN_BY_PROMETHEUS = {"instance", "job", "le"}
_HISTOGRAM = r"_(bucket|sum|count|created)$"
PAGE_LABELS = {
    name: set(re.findall(r"\w+", labels))
    for names, labels in re.findall(
        r"^\| (`insync_[^|]*) \| ([^|]*) \|", (FOLDER.parent / "monitoring.md").read_text("utf-8"), re.M
    )
    for name in re.findall(r"\w+", names)
}
"""Of each metric in the table of docs/monitoring.md."""


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def labels_in(text: str) -> set[str]:
    named = (name for match in _LABELS.findall(text) for part in match for name in part.split(","))
    return {name.strip() for name in named if name.strip()} - _GIVEN_BY_PROMETHEUS - {"value"}


async def test_every_metric_and_label_that_is_asked_for_is_told_by_a_node(tmp_path: Path) -> None:
    async with (
        Node(settings(tmp_path, 1, metrics_port=0)) as node,
        Node(settings(tmp_path, 2)),
        Admin(node.endpoints) as admin,
        Producer(node.endpoints) as producer,
    ):
        await admin.create_topic("t", 2, 2)
        for partition in (0, 1):
            await producer.send_and_wait("t", b"v", partition=partition)
        told = await scrape(node.metrics_address)
    samples = {each.name for each in told.samples} | {f"{name}_total" for name in told.types}
    samples |= {name + end for name in told.types for end in ("", "_bucket", "_count", "_sum")}
    labels = {label for each in told.samples for label in each.labels}
    for each in told.samples:
        assert each.labels.keys() - {"le"} <= PAGE_LABELS.get(re.sub(_HISTOGRAM, "", each.name), labels), each
    asked = [(query["expr"], query["legendFormat"]) for panel in panels() for query in panel["targets"]]
    asked += [(rule["expr"], json.dumps(rule["annotations"])) for rule in rules()]
    assert len(asked) > 30
    for expression, text in asked:
        for name in _NAME.findall(expression):
            assert name in samples, f"{name} in {expression}: no node tells that"
        wrong = labels_in(expression + text) - labels
        assert not wrong, f"{wrong} in {expression}: no metric has such a label"


def test_panels_and_rules_are_whole_and_each_stands_once() -> None:
    shown = panels()
    assert len({panel["id"] for panel in shown}) == len({panel["title"] for panel in shown}) == len(shown)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown}
    assert len(places) == len(shown)
    alerts = rules()
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 8
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
