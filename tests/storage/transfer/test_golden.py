"""Files exported by this and every earlier version are read by the current code."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from storage import DamageRow, PortableFile, SessionStore, SessionTree
from storage.transfer.parts import VERSION
from storage.transfer.portable import PORTABLE_VERSION
from tests.storage.helpers import ids, with_store
from tests.storage.transfer.trees import taken

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted([*GOLDEN.glob("portable-*.gz"), *GOLDEN.glob("session-*.gz")])


def unpacked(golden: Path, folder: Path) -> Path:
    file = folder / golden.stem
    file.write_bytes(gzip.decompress(golden.read_bytes()))
    return file


@pytest.mark.parametrize("golden", FILES, ids=lambda each: each.name)
def test_a_file_exported_by_any_version_is_imported(golden: Path, path: Path, tmp_path: Path) -> None:
    imported = taken(path, unpacked(golden, tmp_path))

    async def read(store: SessionStore) -> tuple[SessionTree, list[list[int]], Sequence[DamageRow]]:
        tree = await store.load_session(imported.sessions[0])
        tokens = await store.load_tokens([node.id for node in tree.nodes])
        return tree, [ids(tokens[node.id]) for node in tree.nodes], await store.verify()

    tree, tokens, damage = with_store(path, read)
    assert tree.session.title == "A spring trip"
    assert [node.text for node in tree.nodes] == [
        "Where should we go in April?",
        "answer in A spring trip",
        "Lisbon, the Alfama",
    ]
    assert [len(each) for each in tokens] == [4, 6, 5]
    assert damage == []


def test_a_portable_file_has_its_snapshot(tmp_path: Path) -> None:
    with closing(PortableFile(unpacked(GOLDEN / "portable-1.elsewise.gz", tmp_path))) as file:
        assert file.snapshot() == {"version": 1, "ids": [1, 2]}


def test_there_is_an_exported_file_for_every_version() -> None:
    assert [int(file.name.split("-")[1].split(".")[0]) for file in FILES] == [
        *range(1, PORTABLE_VERSION + 1), *range(1, VERSION + 1),
    ]  # fmt: skip
