"""A block file returns what it stores, and evicts in the right order."""

from __future__ import annotations

import errno
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from runtime.kv.store import Block, BlockStore
from storage import BlockFile, open_blocks
from storage.blocks import schema
from tests.storage.blocks.helpers import BUDGET, block, chain, expected, joined, key, keys, size

MB = 1 << 20
PRAGMAS = ("journal_mode", "synchronous", "trusted_schema")  # 1: NORMAL


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "blocks.sqlite3"


def test_a_block_file_implements_the_block_store_protocol(file: Path) -> None:
    with open_blocks(str(file), BUDGET) as opened:
        store: BlockStore = opened  # checked by the type checker
        assert store.put(chain("a", "b")) == 2
        assert store.get(keys("a", "b")) == expected("a", "b")


def test_blocks_are_kept_over_a_restart(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        assert store.put(chain("a", "b", "c")) == 3
        assert store.put(chain("a", "b", "d")) == 1  # only new blocks count
    with BlockFile(file, BUDGET) as store:
        assert store.leading(keys("a", "b", "d", "e")) == 3
        assert store.get(keys("a", "b", "c")) == expected("a", "b", "c")
        assert store.get([]) == store.get(keys("x")) == []
        counted = store.stats()
    assert (counted.blocks, counted.bytes, counted.budget) == (4, 400, BUDGET)
    assert (counted.evicted, counted.damaged) == (0, 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in file.parent.iterdir()] == [file.name]  # without the journal


def test_the_parts_of_a_block_are_joined(file: Path) -> None:
    rng = np.random.default_rng(3)
    parts = [rng.bytes(n) for n in (0, 1, MB - 1, 2 * MB, 17, 3 * MB + 5)]
    array = rng.standard_normal((60, 70)).astype(np.float32)
    made = Block(key("a"), None, 64, [*parts, array.data, bytearray(b"end")])
    empty = Block(key("a", "b"), key("a"), 1, [])
    with BlockFile(file, BUDGET) as store:
        assert store.put([made, empty]) == 2
        assert store.get(keys("a", "b")) == [joined(parts) + array.tobytes() + b"end", b""]


def test_a_block_of_another_path_is_not_returned(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        store.put([*chain("a", "b"), *chain("x", "y")])
        assert store.get([key("a"), key("x", "y")]) == expected("a")
        assert store.leading([key("a"), key("x", "y")]) == 1


def test_a_block_whose_parent_is_missing_is_not_stored(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        assert store.put([block("a", "b", "c"), block("x"), block("x", "y")]) == 2
        assert store.leading([key("a", "b", "c")]) == 0
        assert store.leading(keys("x", "y")) == 2


@pytest.mark.parametrize(
    "wrong",
    [Block(b"short", None, 1, [b"x"]), Block(key("a"), b"short", 1, [b"x"]), Block(key("a"), None, 0, [b"x"])],
)
def test_a_put_with_an_invalid_block_stores_nothing(file: Path, wrong: Block) -> None:
    with BlockFile(file, BUDGET) as store:
        with pytest.raises(ValueError, match=r"block"):
            store.put([block("fine"), wrong])
        assert store.stats().blocks == 0


def test_the_least_recently_used_leaf_goes_first(file: Path) -> None:
    with BlockFile(file, 400) as store:
        store.put(chain("a", "b"))
        store.put(chain("x", "y"))
        store.leading(keys("a", "b"))  # used after x/y
        assert store.put([block("new")]) == 1
        assert store.leading(keys("x", "y")) == 1  # y is evicted, its parent is not
        assert store.leading(keys("a", "b")) == 2
        assert store.put([block("newer")]) == 1
        assert store.stats().evicted == 2
        assert store.leading(keys("new")) == 0  # the lookups of x and a/b counted as uses
        assert store.leading(keys("x")) == store.leading(keys("newer")) == 1


def test_a_use_of_the_last_block_counts_for_the_whole_path(file: Path) -> None:
    with BlockFile(file, 500) as store:
        store.put(chain("a", "b", "c"))  # uses a, b and c
        store.put(chain("x", "y"))
        store.put([block("a", "b", "c")])
        store.evict(200)
        assert store.leading(keys("a", "b", "c")) == 3
        assert store.leading(keys("x")) == 0
        store.put(chain("x", "y"))
        store.leading(keys("a", "b", "c"))
        store.leading(keys("x", "y"))
        assert store.evict(1) == 100  # c, whose path was used before x/y
        assert store.evict(1) == 100  # then b, used at the same time as c
        assert store.leading(keys("a", "b")) == 1
        assert store.leading(keys("x", "y")) == 2


def test_a_block_larger_than_the_budget_is_not_stored_and_evicts_nothing(file: Path) -> None:
    with BlockFile(file, 1_000) as store:
        store.put(chain("a", "b"))
        assert store.put([block("huge", nbytes=1_001)]) == 0
        assert store.put([block("p", nbytes=600), block("p", "q", nbytes=600)]) == 1  # its parent fits
        assert store.leading(keys("a", "b")) == 2
        assert store.leading(keys("p", "q")) == 1


def test_pins_keep_a_block_and_its_ancestors_over_a_restart(file: Path) -> None:
    with BlockFile(file, 500) as store:
        store.put(chain("a", "b", "c"))
        store.put(chain("x", "y"))
        store.pin("chat", [key("a", "b")])
    with BlockFile(file, 500) as store:
        assert store.evict(10_000) == 300  # c, y, x
        assert store.leading(keys("a", "b", "c")) == 2
        assert store.put(chain("n", "o", "p", "q")) == 3
        store.pin("chat", [key("n")])  # replaces the former pin
        assert store.evict(10_000) == 400
        assert store.leading(keys("n")) == 1
        store.pin("chat", ())
        assert store.evict(10_000) == 100
        assert store.stats().blocks == 0


def test_blocks_can_be_stored_pinned(file: Path) -> None:
    with BlockFile(file, 300) as store:
        store.put(chain("a", "b"), pinned=True)
        store.put([block("x")])
        assert store.put(chain("p", "q")) == 1
        assert store.leading(keys("a", "b")) == 2
        store.pin("", ())
        assert store.put(chain("p", "q", "r")) == 2


def test_a_superseded_partial_block_is_removed(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        store.put([*chain("a"), block("a", "half", tokens=30), block("a", "other"), block("a", "other", "tip")])
        store.put([block("a", "whole")], superseded=[key("a", "half"), key("a", "other"), key("missing")])
        assert store.leading(keys("a", "half")) == 1
        assert store.leading(keys("a", "other", "tip")) == 3  # it has a descendant
        store.put([block("a", "half")])
        store.pin("chat", [key("a", "half")])
        store.put([block("a", "whole", "more")], superseded=[key("a", "half"), key("a", "whole")])
        assert store.leading(keys("a", "half")) == 2  # pinned
        assert store.leading(keys("a", "whole", "more")) == 3


def test_the_file_shrinks_after_an_eviction(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        for n in range(8):
            store.put([block(str(n), nbytes=2 * MB)])
        store.evict(1)
        full = size(file)
        assert full > 14 * MB
        assert store.evict(10 * MB) == 10 * MB
        assert size(file) < 5 * MB
    with BlockFile(file, 3 * MB) as store:  # a smaller budget than before
        assert store.stats().blocks == 1
        assert store.stats().evicted == 1
    assert size(file) < 3 * MB


def test_freed_pages_are_reused(file: Path) -> None:
    with BlockFile(file, 8 * MB) as store:
        for n in range(20):
            assert store.put([block(str(n), nbytes=2 * MB)]) == 1
            assert store.stats().bytes <= 8 * MB
    assert size(file) < 11 * MB


def test_blocks_are_copied_into_another_file(file: Path, tmp_path: Path) -> None:
    there = tmp_path / "portable.elsewise"
    with BlockFile(file, BUDGET) as store:
        store.put([*chain("a", "b"), *chain("x", "y")])
        assert store.copy_to(there, [*keys("a", "b"), key("nowhere")]) == 2
        assert store.copy_to(there, [*keys("a", "b"), key("x")]) == 3  # blocks already there are not copied again
    with open_blocks(tmp_path / "more" / "third.db", BUDGET) as third:
        assert third.take_from(there, [*keys("a", "b"), key("nowhere"), key("x")]) == 3
        assert third.take_from(there, keys("a", "b")) == 2  # stored already
        assert third.get(keys("a", "b")) == expected("a", "b")
        assert third.take_from(there, keys("a", "c")[1:]) == 0
        with pytest.raises(OSError, match="nowhere"):
            third.take_from(tmp_path / "nowhere.db", keys("a"))
    with open_blocks(tmp_path / "more" / "small.db", 250) as small:  # room for two blocks of 100 bytes
        assert small.take_from(there, [*keys("a", "b"), key("x")]) == small.stats().blocks == 2
    with open_blocks(there, 0, read_only=True) as copy:
        assert copy.get(keys("a", "b")) == expected("a", "b")
        assert copy.leading(keys("x", "y")) == 1
        with pytest.raises(OSError, match="only read") as refused:
            copy.put([block("new")])
        assert refused.value.errno == errno.EROFS
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [there.name]


def test_the_block_file_does_not_wait_for_the_disk_at_a_commit(file: Path) -> None:
    with closing(schema.open_file(file)) as conn:
        found = [conn.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS]
    assert dict(zip(PRAGMAS, found, strict=True)) == {"journal_mode": "wal", "synchronous": 1, "trusted_schema": 0}


def test_a_closed_file_refuses_every_call(file: Path) -> None:
    store = BlockFile(file, BUDGET)
    store.close()
    store.close()
    with pytest.raises(OSError, match="closed") as error:
        store.get(keys("a"))
    assert error.value.errno == errno.EBADF


def test_the_size_of_the_file_stays_near_the_budget(file: Path) -> None:
    """The budget counts bytes of KV; SQLite's pages and free pages add little, also during writes."""
    budget, each = 24 * MB, 3 * MB - 1000  # as large as a block of a small model
    most = 0
    with BlockFile(file, budget) as store:
        for number in range(24):
            store.put([block(str(number), nbytes=each)])
            most = max(most, size(file))
            assert store.stats().bytes <= budget
    assert not file.with_name(f"{file.name}-wal").exists()
    assert most <= budget * 9 // 8 + 4 * MB
    assert budget - each <= size(file) <= budget * 9 // 8
    # with a smaller budget the rest is evicted, from the disk too
    with BlockFile(file, budget // 4) as store:
        assert store.stats().bytes <= budget // 4
    assert size(file) <= budget // 4 * 9 // 8 + MB
