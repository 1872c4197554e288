"""Exports one path of a session as Markdown, or as CSV or JSON with a row per token."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from storage.files import written
from storage.rows import Columns, NodeRow
from storage.tables import columns as token_columns
from storage.tables.token_chunks import text_of
from storage.transfer.session_reader import OnProgress, StoredSession, stored_session

Steps = list[tuple[NodeRow, int | None, int | None]]  # nodes, each with how many of its tokens and bytes belong to the path
_SPEAKERS: Final = {"system": "System", "user": "You", "assistant": "Model", "tool": "Tool"}
_ORIGINS: Final = ("template", "typed", "sampled", "picked", "grammar", "imported")
_LN2: Final = math.log(2)


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token of a path. Logarithms are natural; an unscored token has no scores."""

    position: int  # on the path, from 0
    turn: int  # on the path, from 1
    role: str
    node: int
    offset: int  # in the node
    model: str  # its KV fingerprint
    id: int | None
    text: str
    origin: str
    logprob: float | None
    probability: float | None
    surprisal_bits: float | None
    rank: int | None
    entropy: float | None  # nats
    top: list[tuple[int, float]]  # the likeliest tokens, each with its logprob
    damaged: bool


def export_text(kind: str, store: Path, session_id: int, path: Path, progress: OnProgress, tip: int | None = None) -> None:
    """Writes one path of a session in a format of `WRITERS`. Blocking; callable from any thread.

    Of a damaged session it writes the readable parts.

    Args:
        kind: The format.
        store: The sessions file.
        session_id: The session.
        path: The target; replaced only by a complete export.
        progress: Called with the nodes of the path done and in all.
        tip: The last node of the path; None: the tip of the shown path.
    """
    with stored_session(store, session_id) as session, written(path) as file:
        nodes = session.path(session.row["current_node"] if tip is None else tip)
        WRITERS[kind](file, session, nodes, path.suffix.lower(), progress)


def _markdown(file: BinaryIO, session: StoredSession, nodes: Steps, _suffix: str, progress: OnProgress) -> None:
    """A heading and the text of each turn."""
    file.write(f"# {' '.join(str(session.row['title']).split())}".encode())
    for done, (node, stop, byte) in enumerate(nodes):
        text = "\n\n".join(filter(None, [_text_on_path(session, node, stop, byte), *_pinned_files(node)]))
        continues = not node.turn_start and done
        if node.damaged:
            file.write(b"\n> Part of this turn is damaged; what could be read follows.\n")
        if continues:
            file.write(text.encode())
        elif text:
            file.write(f"\n\n## {_SPEAKERS.get(node.role, node.role)}\n\n{text}".encode())
        progress(done + 1, len(nodes))
    file.write(b"\n")


def _tokens(file: BinaryIO, session: StoredSession, nodes: Steps, suffix: str, progress: OnProgress) -> None:
    """A row per token: JSON lines where the file's name ends in .json or .jsonl, else CSV with a header."""
    as_json = suffix in (".json", ".jsonl")
    if not as_json:
        file.write(_csv_line([field.name for field in fields(TokenLine)]))
    position, turn = 0, 0
    for done, (node, stop, _) in enumerate(nodes):
        turn += int(node.turn_start or not done)
        for line in _lines(session, node, stop, position, turn):
            file.write(msgspec.json.encode(line) + b"\n" if as_json else _csv_row(line))
            position = line.position + 1
        progress(done + 1, len(nodes))


# a new format needs its writer and an entry here, and a row in `app.workbench.transfer.exports`
WRITERS: Final = {"markdown": _markdown, "csv": _tokens, "tokens": _tokens}


def _text_on_path(session: StoredSession, node: NodeRow, stop: int | None, byte: int | None) -> str:
    """The part of a node's text that is on the path."""
    if byte is not None:
        return node.text.encode()[:byte].decode("utf-8", "replace")
    if stop is None or stop >= node.token_count:
        return node.text
    pieces = [token_columns.cut(found, 0, stop - first) for first, _, found, _ in session.tokens(node.id) if first < stop]
    return "".join(text_of(found) for found in pieces)


def _pinned_files(node: NodeRow) -> Iterator[str]:
    """The pinned files of a system node (``[[name, text], ...]`` in its stats), in the form that a model reads."""
    held = node.stats.get("files") if node.role == "system" else None
    for entry in held if isinstance(held, list) else []:
        match entry:
            case [str(name), str(text)]:
                yield f"[{name}]\n{text.rstrip()}\n[end of {name}]"


def _lines(session: StoredSession, node: NodeRow, stop: int | None, position: int, turn: int) -> Iterator[TokenLine]:
    for first, model, found, damaged in session.tokens(node.id):
        count = len(next(iter(found.values()))) if found else 0
        texts = token_columns.pieces(found, "text")
        numbers = {name: _numbers(found, name, count) for name in ("ids", "logprob", "rank", "entropy", "origin")}
        for i in range(count if stop is None else min(count, stop - first)):
            logprob = _finite(numbers["logprob"][i])
            scored = bool(numbers["rank"][i]) or logprob is not None  # a server may not report the rank
            origin = numbers["origin"][i]
            yield TokenLine(
                position=position,
                turn=turn,
                role=node.role,
                node=node.id,
                offset=first + i,
                model=model,
                id=numbers["ids"][i],
                text=texts[i].decode("utf-8", "replace") if texts else "",
                origin=_ORIGINS[origin] if origin is not None and 0 <= origin < len(_ORIGINS) else "",
                logprob=logprob,
                probability=None if logprob is None else math.exp(logprob),
                surprisal_bits=None if logprob is None else -logprob / _LN2,
                rank=numbers["rank"][i] or None,
                entropy=_finite(numbers["entropy"][i]) if scored else None,
                top=_top(found, i) if scored else [],
                damaged=damaged,
            )
            position += 1


def _numbers(found: Columns, name: str, count: int) -> list[Any]:
    column = found.get(name)
    return [None] * count if column is None or column.ndim != 1 else np.asarray(column).tolist()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _top(found: Columns, row: int) -> list[tuple[int, float]]:
    ids, logprobs = found.get("top_ids"), found.get("top_logprobs")
    if ids is None or logprobs is None or ids.ndim != 2 or ids.shape != logprobs.shape:
        return []
    pairs = zip(ids[row].tolist(), logprobs[row].tolist(), strict=True)
    return [(token, logprob) for token, logprob in pairs if token >= 0 and math.isfinite(logprob)]


def _csv_row(line: TokenLine) -> bytes:
    """The row of a token; alternatives are written as "id:logprob id:logprob"."""
    top = " ".join(f"{token}:{logprob:.6g}" for token, logprob in line.top)
    return _csv_line([top if field.name == "top" else getattr(line, field.name) for field in fields(TokenLine)])


def _csv_line(values: list[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue().encode()
