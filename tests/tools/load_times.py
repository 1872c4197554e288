"""Prints the time of a load after the weights are read: seconds, and CPU-seconds, which other programs do not change.

`python -m tests.tools.load_times [MODEL...]`; smollm2 by default. Each engine loads in two processes, with an engine process's
environment, and the second load counts: the first one makes the measurements that are saved for a model. A second load in the
same process would skip the self-test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from resources.processes import engine_environment
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
    if len(sys.argv) == 4 and sys.argv[1] == "--one":
        seconds, cpu = after_weights(*sys.argv[2:])
        print(f"{' '.join(sys.argv[2:])}: {seconds:.2f} s after the weights are read, {cpu:.2f} cpu-s")  # noqa: T201  # the result
        sys.exit()
    for name in sys.argv[1:] or ["smollm2"]:
        for engine in ("hf", "mlx"):
            command = [sys.executable, "-m", "tests.tools.load_times", "--one", name, engine]
            environment = engine_environment(os.environ, engine, None) | {"PYTHONSAFEPATH": ""}  # the repository's folder
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
            subprocess.run(command, env=environment, check=True)
