"""Fills a KV store with many edges and measures the seconds of queries and the bytes held; JSON to stdout.

`python -m benchmarks.children.edges FOLDER BACKEND VOCABULARY EDGES QUERIES`. It runs in its own process, after only a few
queries: edges that reused memory freed by earlier work would not show in the bytes of the process.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.children.child import resident_bytes
from benchmarks.ours import open_model

FEW = 256  # queries of a small batch
PAUSE_SECONDS, PAUSES = 0.013, 15
ROOM = 4 << 30  # bytes of the KV budget


def main(folder: Path, backend: str, vocabulary: int, edges: int, many: int) -> dict[str, float]:
    """Seconds per query after a pause, without and with edges, and in small and large batches; bytes held by the edges."""
    rng = np.random.default_rng(12)
    with closing(open_model(folder, backend, kv_cache_bytes=ROOM)) as model:

        def seconds(n: int) -> float:
            """Seconds per query in a batch of `n` new contexts."""
            contexts: list[list[int]] = rng.integers(5, vocabulary - 5, (n, 4)).tolist()
            started = time.perf_counter()
            model.batch_top_logprobs_sync(contexts, 1)
            return (time.perf_counter() - started) / n

        def paused() -> float:
            """Seconds of a single query after a pause, the median of several."""
            found = []
            for _ in range(PAUSES):
                time.sleep(PAUSE_SECONDS)
                found.append(seconds(1))
            return median(found)

        def held() -> tuple[int, int]:
            """Bytes held by the process, and bytes counted in the KV budget."""
            return resident_bytes(), model.metrics().kv_bytes

        paused()  # warm-up: first queries compile and allocate
        empty, before, small, large = paused(), held(), list[float](), list[float]()
        while model.cache_report().edges < edges:
            small.append(median(seconds(FEW) for _ in range(5)))
            large.append(seconds(many))
        full, after = paused(), held()
        return {
            "edges": model.cache_report().edges,
            "empty": empty,
            "full": full,
            "few": median(small),
            "many": median(large),
            "held": after[0] - before[0],
            "counted": after[1] - before[1],
        }


if __name__ == "__main__":
    folder, backend, *numbers = sys.argv[1:]
    vocabulary, edges, many = map(int, numbers)
    print(json.dumps(main(Path(folder), backend, vocabulary, edges, many)))
