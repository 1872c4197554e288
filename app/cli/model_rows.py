"""How models and adapters look in a terminal."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from runtime import ShelfEntry, ShelvedAdapter, available_backends

_COLUMNS = ("name", "title", "parameters", "size", "format", "context", "runs on", "state")
_RIGHT = ("parameters", "size", "context")


def shelf_table(entries: list[ShelfEntry], adapters: list[ShelvedAdapter]) -> Table:
    """A row each: models, then adapters with the model that they were made for."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left")
    for entry in entries:
        table.add_row(
            Text(entry.name),
            Text(one_line(entry.title)),
            _count(entry.parameters),
            f"{entry.bytes / 1e6:,.0f} MB",
            Text(_format(entry)),
            f"{entry.context:,}" if entry.context else "-",
            ", ".join(entry.backends) or "-",
            Text("ready" if entry.complete else one_line(entry.problem)),
        )
    for adapter in adapters:
        base = f"for {one_line(adapter.base)}" if adapter.base else "for a base it does not name"
        kind = "activated adapter" if adapter.kind == "alora" else "adapter"
        table.add_row(
            Text(adapter.name),
            Text(base),
            f"{adapter.parameters / 1e6:,.1f} M" if adapter.parameters else "-",
            f"{adapter.bytes / 1e6:,.1f} MB",
            f"{kind} {adapter.layout}".rstrip(),
            "-",
            "-",
            Text(one_line(adapter.problem) or "ready"),
        )
    return table


def facts_table(entry: ShelfEntry, more: Mapping[str, str]) -> Table:
    """All that is known of one model, and more rows."""
    table = Table(box=None, show_header=False, pad_edge=False)
    used = "never, or not since that is noted"
    if entry.last_used is not None:
        used = datetime.datetime.fromtimestamp(entry.last_used).astimezone().strftime("%Y-%m-%d %H:%M")
    rows = {
        "name": entry.name,
        "title": entry.title,
        "state": "ready" if entry.complete else entry.problem,
        "source": entry.source or "a folder that was put here",
        "commit": entry.commit,
        "architecture": entry.architecture,
        "parameters": _count(entry.parameters),
        "size": f"{entry.bytes:,} bytes",
        "weights": " ".join(part for part in (_format(entry), entry.dtype) if part),
        "context": f"{entry.context:,} tokens" if entry.context else "not said",
        "runs on": "; ".join(_backend(name) for name in entry.backends) or "no engine of Elsewise's",
        "fingerprint": entry.fingerprint or "not known yet: 'elsewise models verify' reads the weights",
        "last used": used,
        "folder": str(entry.path),
        **more,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(one_line(value)))
    return table


def facts(entry: ShelfEntry) -> dict[str, Any]:
    """The same for programs."""
    plain = ("name", "title", "source", "bytes", "parameters", "format", "complete", "problem")
    found: dict[str, Any] = {
        name: getattr(entry, name) for name in (*plain, "architecture", "quantisation", "dtype", "context")
    }
    return found | {
        "backends": list(entry.backends),
        "fingerprint": entry.fingerprint,
        "last_used": entry.last_used,
        "commit": entry.commit or None,
        "path": str(entry.path),
    }


def ready_line(name: str, path: Path, quantised: str | None = None) -> str:
    """That a model is on the shelf, and how it is used.

    Args:
        name: What it is called there.
        path: Where it is.
        quantised: How, where it is so that mlx alone runs it.
    """
    form = f" ({quantised})" if quantised else ""
    return f"{name}: ready in {path}{form}; use it with: elsewise ask --model {name}"


def one_line(text: str) -> str:
    """A text out of somebody's file, without what would move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _format(entry: ShelfEntry) -> str:
    return f"{entry.quantisation}, {entry.format}" if entry.quantisation else entry.format


def _backend(name: str) -> str:
    state = available_backends().get(name)
    return name if state is True else f"{name} (not here: {state})"


def _count(parameters: int | None) -> str:
    return f"{parameters / 1e6:,.0f} M" if parameters else "-"
