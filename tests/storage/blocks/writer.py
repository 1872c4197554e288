"""A process that stores blocks until it is killed or its disk fails; prints every acknowledged call.

Each line on stdout is one JSON object, written after the member has returned: ["put", path...], ["failed", errno, message] or
["done"]. Arguments: the block file, the number of rounds, a fault and a file for its log (see `failing_vfs`), or neither.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from storage import BlockFile
from tests.storage.blocks.helpers import BUDGET, block, chain, keys
from tests.storage.failing_vfs import install

NBYTES = 20_000


def say(*words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def keep(store: BlockFile, rounds: int) -> None:
    for n in range(rounds):
        for path in (("stem", f"half {n}"), ("stem", f"{n}", "tip")):
            try:
                half = keys("stem", f"half {n}")[1:] if len(path) > 2 else []
                store.put(chain(*path, nbytes=NBYTES), superseded=half)
            except OSError as error:
                say("failed", error.errno, str(error))
            else:
                say("put", *path)
        try:
            store.put([block("gone", f"{n}", nbytes=NBYTES), block(f"loose {n}", nbytes=NBYTES)])
            store.get(keys("stem", f"{n}", "tip"))
            store.evict(1)  # makes the file smaller
        except OSError as error:
            say("failed", error.errno, str(error))


if __name__ == "__main__":
    injector = install(sys.argv[3], Path(sys.argv[4])) if len(sys.argv) > 3 else None
    try:
        with BlockFile(Path(sys.argv[1]), BUDGET) as opened:
            keep(opened, int(sys.argv[2]))
        say("done")
    except OSError as fault:
        say("failed", fault.errno, str(fault))
