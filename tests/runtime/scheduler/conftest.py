"""A separate block store for each test that requests one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.options.load import BlockOptions
from tests.block_stores import SHELVES, MemoryBlocks, memory_options


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Iterator[BlockOptions]:
    """Options of a store in memory that outlives models and ends with the test."""
    name = request.node.nodeid
    SHELVES[name] = MemoryBlocks()
    yield memory_options(name)
    del SHELVES[name]


@pytest.fixture
def store(options: BlockOptions) -> MemoryBlocks:
    """The store of `options`."""
    return SHELVES[options.path]
