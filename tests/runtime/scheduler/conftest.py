"""A block store of its own for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.blocks.options import BlockOptions
from tests.block_stores import SHELVES, MemoryBlocks, memory_options


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Iterator[BlockOptions]:
    """Of a store in memory that outlives models, and ends with the test."""
    name = request.node.nodeid
    SHELVES[name] = MemoryBlocks()
    yield memory_options(name)
    del SHELVES[name]


@pytest.fixture
def store(options: BlockOptions) -> MemoryBlocks:
    """That store."""
    return SHELVES[options.path]
