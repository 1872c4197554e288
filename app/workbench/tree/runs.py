"""Runs of tokens that grow with spare room, so that a stream of n tokens costs O(n), and functions on runs."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from app.workbench.tree.node_index import Int64
from runtime import Finish, Origin, StageTable, TokenRun, texts_of

LEAST_ROOM = 64  # rows
LISTED = ("token_bytes", "texts", "stages", "vocabulary")  # fields of a run that are not arrays
EMPTY = TokenRun.concat([])
BROKEN = "\ufffd"
LONGEST = 4  # bytes of a character


class GrowingRun:
    """Columns that double when full. `moved` counts the rows copied for that: fewer than twice the rows appended."""

    def __init__(self, start: TokenRun) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            column.name: getattr(start, column.name) for column in fields(TokenRun) if column.name not in LISTED
        }
        self._stages = [(len(start), start.stages)]
        self._token_bytes = list(start.token_bytes)
        self._texts = list(start.texts)
        self._run: TokenRun | None = start  # the cached result of `run`
        self.moved = 0

    def __len__(self) -> int:
        return len(self._texts)

    def append(self, run: TokenRun) -> None:
        """Appends tokens at an amortised cost that depends on `run` alone."""
        if not len(run):
            return
        at, end = len(self), len(self) + len(run)
        self._make_room(end, run.top_k)
        for name, column in self._columns.items():
            rows = getattr(run, name)
            if rows.ndim == 2:
                column[at:end, rows.shape[1] :] = -1 if name == "top_ids" else -np.inf
                column[at:end, : rows.shape[1]] = rows
            else:
                column[at:end] = rows
        self._stages.append((len(run), run.stages))
        self._token_bytes.extend(run.token_bytes)
        self._texts.extend(run.texts)
        self._heal(at)
        self._run = None

    @property
    def run(self) -> TokenRun:
        """All tokens so far. The arrays are views of rows that no longer change; the two tuples are copies."""
        if self._run is None:
            n = len(self)
            columns: dict[str, Any] = {name: column[:n] for name, column in self._columns.items()}
            texts = tuple(self._texts)
            self._run = TokenRun(token_bytes=tuple(self._token_bytes), texts=texts, stages=self._joined_stages(), **columns)
        return self._run

    def _joined_stages(self) -> StageTable | None:
        if all(stages is None for _, stages in self._stages):
            return None
        joined = StageTable.concat([StageTable.empty(n) if stages is None else stages for n, stages in self._stages])
        self._stages = [(len(joined), joined)]
        return joined

    def _make_room(self, end: int, top_k: int) -> None:
        for name, column in self._columns.items():
            width = max(column.shape[1], top_k) if column.ndim == 2 else None
            if end <= len(column) and (width is None or width == column.shape[1]):
                continue
            rows = max(2 * end, LEAST_ROOM)
            fill = -1 if name == "top_ids" else -np.inf  # fills rows of narrower tables
            larger = np.empty(rows, column.dtype) if width is None else np.full((rows, width), fill, column.dtype)
            if width is None:
                larger[: len(self)] = column[: len(self)]
            else:
                larger[: len(self), : column.shape[1]] = column[: len(self)]
            self.moved += len(self) if name == "ids" else 0
            self._columns[name] = larger

    def _heal(self, at: int) -> None:
        """Repairs the texts around token `at`, if the bytes of a character are split between appended runs."""
        pending = unfinished(b"".join(self._token_bytes[max(at - LONGEST, 0) : at]))
        if not pending or not self._texts[at - 1].endswith(BROKEN):  # the texts of one stream are right already
            return
        self._texts[at - 1] = self._texts[at - 1].removesuffix(pending.decode(errors="replace"))
        whole = texts_of([pending, *self._token_bytes[at:]])[1:]
        self._texts[at:] = _decoded(self._texts[at:], whole, self._token_bytes[at:], self._columns["finish"][at : len(self)])


def unfinished(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character without completing it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[1 - LONGEST :])
    return decoder.getstate()[0]


class Runs(MutableMapping[int, TokenRun]):
    """Runs by node; a growing run becomes a `TokenRun` when it is read."""

    def __init__(self) -> None:
        self._runs: dict[int, TokenRun | GrowingRun] = {}
        self._growing: dict[int, GrowingRun] = {}
        self._still: tuple[Int64, Int64] | None = None  # ids and lengths of the runs that do not grow

    def extend(self, node_id: int, run: TokenRun) -> None:
        """Appends to a node's run at an amortised cost that depends on `run` alone."""
        held = self._runs.get(node_id, EMPTY)
        if not isinstance(held, GrowingRun):
            held = self._runs[node_id] = self._growing[node_id] = GrowingRun(held)
            self._still = None
        held.append(run)

    def length(self, node_id: int) -> int:
        """The number of tokens of a node; 0 for an unknown node."""
        held = self._runs.get(node_id)
        return 0 if held is None else len(held)

    def lengths(self) -> tuple[Int64, Int64]:
        """Ids of all nodes and the lengths of their runs, ``(n,)`` each; only growing runs are counted every time."""
        if self._still is None:
            still = {node_id: run for node_id, run in self._runs.items() if node_id not in self._growing}
            self._still = _columns(still)
        ids, counts = _columns(self._growing)
        return np.concatenate([self._still[0], ids]), np.concatenate([self._still[1], counts])

    def __getitem__(self, node_id: int) -> TokenRun:
        held = self._runs[node_id]
        return held.run if isinstance(held, GrowingRun) else held

    def __setitem__(self, node_id: int, run: TokenRun) -> None:
        self._forget(node_id)
        self._runs[node_id] = run

    def __delitem__(self, node_id: int) -> None:
        del self._runs[node_id]
        self._forget(node_id)

    def _forget(self, node_id: int) -> None:
        self._growing.pop(node_id, None)
        self._still = None

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._runs


def _columns(runs: Mapping[int, TokenRun | GrowingRun]) -> tuple[Int64, Int64]:
    count = len(runs)
    return np.fromiter(runs, np.int64, count), np.fromiter(map(len, runs.values()), np.int64, count)


def pick(run: TokenRun, offset: int, token_id: int, token_bytes: bytes) -> TokenRun:
    """The token that replaces row `offset`: same distribution, with logprob and rank from the top-k; no forward."""
    row = run[offset : offset + 1]
    place = np.flatnonzero(row.top_ids[0] == token_id)
    known = bool(place.size)
    logprob = row.top_logprobs[0, place[0]] if known else np.float32(np.nan)
    rank = 1 + int((row.top_logprobs[0] > logprob).sum()) if known else 0
    return replace(
        row,
        ids=np.array([token_id], np.int32),
        token_bytes=(token_bytes,),
        texts=texts_of([token_bytes]),
        logprob=np.array([logprob], np.float32),
        rank=np.array([rank], np.int32),
        origin=np.array([int(Origin.PICKED)], np.uint8),
        finish=np.zeros(1, np.uint8),
        draw=np.full(1, np.nan, np.float32),
    )


def as_eos(picked: TokenRun) -> TokenRun:
    """A picked token that ends its answer."""
    return replace(picked, finish=np.array([int(Finish.EOS)], np.uint8))


def without_numbers(run: TokenRun) -> TokenRun:
    """The same tokens without the numbers of another model."""
    plain = TokenRun.unscored(run.ids.tolist(), run.token_bytes, run.texts, Origin.TEMPLATE)
    return replace(plain, origin=run.origin, finish=run.finish)


def leading_template(run: TokenRun) -> int:
    """Number of template tokens at the beginning."""
    own = np.flatnonzero(run.origin != int(Origin.TEMPLATE))
    return int(own[0]) if own.size else len(run)


def began(run: TokenRun) -> bool:
    """Whether an answer has a token after the template's header."""
    return leading_template(run) < len(run)


def text_run(text: str) -> TokenRun:
    """Text that no model has tokenised, as a run of one token."""
    return TokenRun.unscored([0], [text.encode()], [text], Origin.TYPED)


def with_text(run: TokenRun, text: str) -> TokenRun:
    """The intact tokens of a damaged turn, with the rest of its text as one more token."""
    said = content_of(run)
    rest = text.removeprefix(said) if text.startswith(said) else ""
    return TokenRun.concat([run, text_run(rest)]) if rest else run


def content_of(run: TokenRun) -> str:
    """The text of a run without template tokens and the closing eos."""
    kept = (run.origin != int(Origin.TEMPLATE)) & ~run.by_eos
    return "".join(text for text, keep in zip(run.texts, kept.tolist(), strict=True) if keep)


def run_of(columns: Mapping[str, Any]) -> tuple[TokenRun, bool]:
    """Stored columns as a run, and whether all were valid; without the stages if they are not, which another program wrote."""
    try:
        return TokenRun.from_columns(columns), True
    except (KeyError, ValueError, TypeError, IndexError):  # an InvalidRequestError is a ValueError
        return TokenRun.from_columns({n: c for n, c in columns.items() if not n.startswith("stage_")}), False


def healed(run: TokenRun) -> TokenRun:
    """The run with the texts of split characters repaired; text that a stop text cut off stays cut off."""
    if BROKEN not in run.text:
        return run
    return replace(run, texts=tuple(_decoded(run.texts, texts_of(run.token_bytes), run.token_bytes, run.finish)))


def _decoded(
    before: Sequence[str], whole: Sequence[str], token_bytes: Sequence[bytes], finish: npt.NDArray[np.uint8]
) -> list[str]:
    """The texts `whole`, without the ends that a stop text cut off from `before`."""
    cut = ((finish == Finish.STOP) | (finish == Finish.STOP_INSIDE)).tolist()
    rows = zip(before, whole, token_bytes, cut, strict=True)
    return [_cut_again(old, new, data) if stopped else new for old, new, data, stopped in rows]


def _cut_again(old: str, new: str, data: bytes) -> str:
    """`new` without as many last characters as `old` lacks of the token's own text (`data` decoded)."""
    alone = data.decode(errors="replace")
    return old if new.startswith(old) or not alone.startswith(old) else new[: len(new) - (len(alone) - len(old))]
