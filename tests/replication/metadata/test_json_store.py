"""The worked store of docs/examples is a conforming store."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import trio

from insync.replication.metadata import (
    InvalidStoreUrlError,
    MetadataStore,
    Put,
    Session,
    StoreCorruptError,
    StoreUnavailableError,
    Unknown,
)
from insync.replication.metadata.testing import CASES, Bench, Case

FILE = Path(__file__).parents[3] / "docs" / "examples" / "json_store.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("json_store", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["json_store"] = module
    spec.loader.exec_module(module)
    return module


json_store = load()


class JsonBench(Bench):
    timeout_ms = 800
    late_seconds = 1.0
    has_connections = False

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "meta.json")

    def handle(self) -> MetadataStore:
        store: MetadataStore = json_store.JsonStore(self.path)
        return store

    def lose(self, session: Session) -> None:
        session.renewals.cancel()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_worked_store_conforms(case: Case, tmp_path: Path) -> None:
    await case.run(JsonBench(tmp_path))


async def test_foreign_files_and_failing_disks_are_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    path.write_text("[1, 2")
    with pytest.raises(StoreCorruptError, match="no metadata store of ours"):
        async with json_store.JsonStore(str(path)):
            raise AssertionError("it was opened")
    with pytest.raises(StoreUnavailableError, match="nowhere"):
        async with json_store.JsonStore(str(tmp_path / "nowhere" / "meta.json")):
            raise AssertionError("it was opened")
    path.unlink()
    async with json_store.JsonStore(str(path)) as store:
        (tmp_path / "meta.json.draft").mkdir()
        assert isinstance(await store.commit([], [Put("k", b"")]), Unknown)
        assert (await store.get("k")).entry is None


async def test_a_session_that_cannot_be_renewed_counts_as_ended(tmp_path: Path) -> None:
    async with json_store.JsonStore(str(tmp_path / "meta.json")) as store:
        session = await store.open_session(500)
        (tmp_path / "meta.json.draft").mkdir()
        with trio.fail_after(30):
            await session.expired.wait()


def test_url_of_the_worked_store(tmp_path: Path) -> None:
    assert isinstance(json_store.make(f"json://{tmp_path}/meta.json"), json_store.JsonStore)
    with pytest.raises(InvalidStoreUrlError):
        json_store.make("json://relative")
