"""docs/client-settings.md says what the classes say."""

from __future__ import annotations

import attrs
import pytest

from insync.replication.client import ClientSettings, ConsumerSettings, ProducerSettings

from .settings_page import PAGE, entries, own_fields, page


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run python -m tests.replication.client.settings_page"


@pytest.mark.parametrize("cls", [ClientSettings, ProducerSettings, ConsumerSettings])
def test_every_setting_is_told_of_once_and_no_other(cls: type) -> None:
    told = [name for names, _ in entries(cls) for name in names]
    assert sorted(told) == sorted(field.name for field in own_fields(cls))


def test_every_default_is_on_the_page():
    text = PAGE.read_text()
    for cls in (ClientSettings, ProducerSettings, ConsumerSettings):
        for field in attrs.fields(cls):
            assert f"**`{field.name}`**" in text
