"""Prints the time of a load after the weights are read: seconds, and CPU-seconds, which other programs do not change.

`python -m tests.tools.load_times [MODEL...]`; smollm2 by default. Each engine loads twice, and the second load counts: the
first one measures threads and compiles what the libraries compile once.
"""

from __future__ import annotations

import sys
import time

from runtime import LoadProgress, load


def after_weights(model: str, backend: str) -> tuple[float, float]:
    """Seconds and cpu-seconds between the last tensor and the ready model."""
    read = (0.0, 0.0)

    def hear(progress: LoadProgress) -> None:
        nonlocal read
        if progress.done == progress.total > 0:
            read = time.perf_counter(), time.process_time()

    with load(model, backend, on_progress=hear):
        return time.perf_counter() - read[0], time.process_time() - read[1]


if __name__ == "__main__":
    for name in sys.argv[1:] or ["smollm2"]:
        for engine in ("hf", "mlx"):
            after_weights(name, engine)
            seconds, cpu = after_weights(name, engine)
            print(f"{name} {engine}: {seconds:.2f} s after the weights are read, {cpu:.2f} cpu-s")  # noqa: T201  # the result
