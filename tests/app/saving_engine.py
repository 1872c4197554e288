"""A process that computes and saves KV until it is killed, or until its disk fails; prints the acknowledged saves.

Each line on stdout is one JSON object: ["saved", place, tokens] or ["warned", message]. Arguments: the block file;
optionally a fault and a file for its log (see `failing_vfs`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from runtime import BlockOptions
from tests.fakes import fake_model, some_ids
from tests.storage.failing_vfs import install

STEM = some_ids(1, 200)
PATHS = 4


def path_of(number: int) -> list[int]:
    """A path of its own after the common stem, which ends inside a block."""
    return [*STEM, *some_ids(10 + number, 90)]


def say(*words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def main(file: str) -> None:
    with fake_model(blocks=BlockOptions("storage:open_blocks", file, 1 << 30)) as model:
        for number in range(PATHS):
            model.cache_kv(path_of(number))
            say("saved", number, model.save_blocks(path_of(number)).tokens)
        for warning in model.info.warnings:
            say("warned", warning)


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())  # its warnings are in `info.warnings`
    injector = install(sys.argv[2], Path(sys.argv[3])) if len(sys.argv) > 2 else None
    main(sys.argv[1])
