"""What was measured of a model, once: a small file on the shelf, by the digest of its weights.

It may be lost at any time: what is missing is measured again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resources.files import read_regular
from runtime.loading.digests import write_atomically
from runtime.loading.paths import make_private, models_dir

MAX_BYTES = 1 << 20
THREADS = "threads"
_PLACE = ".measured"


def measured(digest: str, key: str) -> dict[str, Any]:
    """What was kept under a key; empty where nothing was.

    Args:
        digest: Of the weights: `ModelFolder.weights_digest`, `ShelfEntry.fingerprint`.
        key: What it says, and of what it depends on ("perplexity", "threads").
    """
    found = _read(_file(digest)).get(key)
    return dict(found) if isinstance(found, Mapping) else {}


def measured_threads(digest: str) -> dict[str, dict[int, float]]:
    """Seconds of a token by number of threads, by how the weights are held and on what machine."""
    found: dict[str, dict[int, float]] = {}
    for key in _read(_file(digest)):
        kind, comma, what = key.partition(", ")
        if kind == THREADS and comma:
            kept = measured(digest, key).items()
            found[what] = {int(n): seconds for n, seconds in kept if n.isdigit() and isinstance(seconds, float)}
    return found


def keep_measured(digest: str, key: str, value: Mapping[str, Any]) -> None:
    """Keeps plain values for `measured`, in place of what was there under that key. A shelf that is read-only keeps none."""
    file = _file(digest)
    with contextlib.suppress(OSError):
        make_private(file.parent)
        write_atomically(file, json.dumps({**_read(file), key: dict(value)}, indent=1).encode())


def forget_measured(digest: str) -> None:
    """Of a model that is no longer here."""
    with contextlib.suppress(OSError):
        _file(digest).unlink()


def _file(digest: str) -> Path:
    return models_dir() / _PLACE / f"{digest}.json"


def _read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(file, MAX_BYTES))
        return found if isinstance(found, dict) else {}
    return {}
