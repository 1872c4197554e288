"""Fault injection into the writer of the block file works on this machine; the sweeps are part of tests/reliability."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from storage import BlockFile
from tests.reliability.crashes import blocks_writer, check_blocks
from tests.storage.blocks.helpers import BUDGET, block
from tests.storage.faults import fired, run, under


@pytest.mark.slow
def test_acknowledged_blocks_survive_a_fault_of_each_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / "blocks.sqlite3"
    with BlockFile(file, BUDGET) as store:
        store.put([block("old")])
    content = file.read_bytes()
    for k, fault in enumerate(("pwrite64:signal=SIGKILL:when=90", "pwrite64:error=ENOSPC:when=60+")):
        copy, log = tmp_path / f"{k}.sqlite3", tmp_path / f"{k}.log"
        copy.write_bytes(content)
        said = run(under("vfs", blocks_writer(copy), copy, fault, log))
        assert fired(log) >= 1, fault
        assert ["done"] not in said or any(words[0] == "failed" for words in said), fault
        check_blocks(copy, said)
        assert not caplog.records
