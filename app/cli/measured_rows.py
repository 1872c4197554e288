"""What was measured of a model here, in a terminal: perplexities of weights in fewer bits, milliseconds by threads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runtime import ShelfEntry, measured_perplexities, measured_threads


def measured_rows(entry: ShelfEntry) -> dict[str, str]:
    """A row for each form of the weights that was loaded."""
    if entry.fingerprint is None:
        return {}
    rows = {f"perplexity ({found.weights})": str(found) for found in measured_perplexities(entry.fingerprint)}
    for what, found in measured_threads(entry.fingerprint).items():
        weights, _, machine = what.partition(", ")
        laps = ", ".join(f"{count}: {seconds * 1000:.1f} ms" for count, seconds in sorted(found.items()))
        rows[f"threads ({weights})"] = f"{laps} a token ({machine})"
    return rows


def measured_facts(entry: ShelfEntry) -> dict[str, Any]:
    """The same for programs."""
    if entry.fingerprint is None:
        return {}
    return {
        "perplexity": [asdict(found) for found in measured_perplexities(entry.fingerprint)],
        "thread_seconds": measured_threads(entry.fingerprint),
    }
