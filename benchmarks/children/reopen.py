"""The second process of W4: loads the model, reopens a saved session, and measures its lower bounds; JSON to stdout."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parts.reopen import NEW, ids_of, loading, session
from runtime import load


def main(asked: dict[str, Any]) -> dict[str, float]:
    """The fields of `benchmarks.parts.reopen.ReopenSeconds`."""
    file, vocabulary = Path(asked["file"]), int(asked["vocabulary"])
    ids = session(int(asked["tokens"]), int(asked["turn"]), vocabulary)
    with closing(load(asked["source"], asked["backend"], **loading(asked["backend"], file))) as model:
        model.next_token_logprobs_sync(ids_of(3, 40, vocabulary))  # warm-up
        per_token, cold = model.info.kv_bytes_per_token, 0.0
        before = model.metrics()
        reopen = _seconds(lambda: model.next_token_logprobs_sync([*ids, *ids_of(4, NEW, vocabulary)]))
        after = model.metrics()
        restored, computed = after.tokens_restored - before.tokens_restored, after.tokens_computed - before.tokens_computed
        forward = _seconds(lambda: model.next_token_logprobs_sync([*ids, *ids_of(5, NEW, vocabulary)]))
        copy = _seconds(np.ones(restored * per_token, np.uint8).copy)
        if asked["cold"]:
            other = ids_of(6, len(ids) + NEW, vocabulary)
            cold = _seconds(lambda: model.next_token_logprobs_sync(other))
    read = _read_and_hash(file, len(ids) * per_token)  # after closing the model, which holds the file exclusively
    if restored != len(ids):
        raise RuntimeError(f"{restored:,} of {len(ids):,} tokens were restored")
    return {"reopen": reopen, "read": read, "copy": copy, "forward": forward, "cold": cold, "computed": computed}


def _seconds(act: Any) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _read_and_hash(file: Path, most: int) -> float:
    """Seconds to read at least `most` bytes of chunks from the SQLite file, if it has so many, and to hash them (SHA-256)."""
    held = 0
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as conn:
        started = time.perf_counter()
        digest = hashlib.sha256()
        for (data,) in conn.execute("SELECT data FROM kv_chunks ORDER BY id"):
            digest.update(data)
            held += len(data)
            if held >= most:
                break
        return time.perf_counter() - started


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
