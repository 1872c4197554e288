"""The other process of W4: loads the model, opens a saved session again, and measures what bounds it; JSON to stdout."""

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

from app.bench.parts.reopen import NEW, ids_of, loading, session
from runtime import load


def main(asked: dict[str, Any]) -> dict[str, float]:
    """Figures as `app.bench.parts.reopen.Opened` has them; seconds."""
    file, vocabulary = Path(asked["file"]), int(asked["vocabulary"])
    ids = session(int(asked["tokens"]), int(asked["turn"]), vocabulary)
    with closing(load(asked["source"], asked["backend"], **loading(asked["backend"], file))) as model:
        model.next_token_logprobs_sync(ids_of(3, 40, vocabulary))  # the library's first call is nobody's
        before = model.metrics()
        reopen = _seconds(lambda: model.next_token_logprobs_sync([*ids, *ids_of(4, NEW, vocabulary)]))
        after = model.metrics()
        restored = after.tokens_restored - before.tokens_restored
        forward = _seconds(lambda: model.next_token_logprobs_sync([*ids, *ids_of(5, NEW, vocabulary)]))
        per_token, cold = model.info.kv_bytes_per_token, 0.0
        if asked["cold"]:
            other = ids_of(6, len(ids) + NEW, vocabulary)
            cold = _seconds(lambda: model.next_token_logprobs_sync(other))
    read, size = _read_and_hash(file, len(ids), per_token)  # now: the file belongs to one at a time
    copy = _seconds(np.ones(size, np.uint8).copy)
    if restored != len(ids):
        raise RuntimeError(f"{restored:,} of {len(ids):,} tokens were restored")
    computed = after.tokens_computed - before.tokens_computed
    return {"reopen": reopen, "read": read, "copy": copy, "forward": forward, "cold": cold, "computed": computed}


def _seconds(act: Any) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _read_and_hash(file: Path, tokens: int, per_token: int) -> tuple[float, int]:
    """Seconds to read the session's bytes as SQLite has them, chunk by chunk, with their SHA-256; and how many they are."""
    most, held = tokens * per_token, 0
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as conn:
        started = time.perf_counter()
        digest = hashlib.sha256()
        for (data,) in conn.execute("SELECT data FROM kv_chunks ORDER BY id"):
            digest.update(data)
            held += len(data)
            if held >= most:
                break
        return time.perf_counter() - started, held


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
