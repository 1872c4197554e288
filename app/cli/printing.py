"""Prints answers as text, a line per token or JSON lines, and tables of models."""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO
from unicodedata import category

import click
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from app.cli.common import headed, rows_table
from runtime import (
    Finish,
    Fit,
    ShelfEntry,
    ShelvedAdapter,
    TokenRecord,
    TokenRun,
    available_backends,
    measured_perplexities,
    measured_threads,
)

ZERO_WIDTH_JOINER: Final = "\u200d"  # joins several emoji into one
LIKELY, UNLIKELY = math.log(0.5), math.log(0.1)  # nats; where the colours of a token's surprise change
UNSOUND = (
    "but read as JSON it is not what the schema describes: a name comes twice in an object, or a number is beyond what can be "
    "held; ask with another --seed, or name the properties in the schema and bound its numbers"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts in the last line of an answer."""

    tokens: int = 0
    finish: str | None = None
    incomplete: bool = True
    reused: int | None = None
    computed: int | None = None
    rate: float | None = None
    guesses: tuple[int, int] | None = None  # drafted and accepted tokens; None without speculation
    model: str = ""
    backend: str = ""
    precision: str = ""  # `ModelInfo.precision` of quantised weights, else ""
    options: Mapping[str, Any] = field(default_factory=dict)  # every option by name, with its value and source


class Printer:
    """Writes tokens to stdout as they come: text, a line per token with alternatives, or JSON lines.

    Args:
        alternatives: Number shown per token.
        as_json: Whether to print one JSON object per line.
        formed: Whether the answer has an output format (schema, regex), which is complete only at its end.
    """

    def __init__(self, alternatives: int, as_json: bool, *, formed: bool = False) -> None:
        self._alternatives = alternatives
        self._json = as_json
        self._formed = formed
        self.summary = Summary()

    @property
    def broken(self) -> bool:
        """Whether the answer is incomplete in its output format."""
        return self._formed and self.summary.incomplete

    def run(self, run: TokenRun, decode: Callable[[int], bytes]) -> None:
        """Prints new tokens."""
        for record in run:
            self.summary = replace(self.summary, tokens=self.summary.tokens + 1)
            if record.finish_reason is not None:
                self.summary = replace(self.summary, finish=record.finish_reason, incomplete=record.incomplete)
            if self._json:
                click.echo(json.dumps({"type": "token", **self._fields(record, decode)}, ensure_ascii=False))
            elif self._alternatives:
                click.echo(self._line(record, decode))
            elif record.finish_reason != Finish.EOS.label:
                click.echo(for_stdout(record.text), nl=False)

    def end(self, seed: int) -> None:
        """Prints the last line: JSON on stdout, otherwise a summary on stderr."""
        summary = self.summary
        if self._json:
            end = {"type": "end", "tokens": summary.tokens, "finish_reason": summary.finish, "seed": seed}
            end |= {"incomplete": summary.incomplete, "model": summary.model, "backend": summary.backend}
            extra = {"reused": summary.reused, "computed": summary.computed, "tokens_per_second": summary.rate}
            end |= {"precision": summary.precision} if summary.precision else {}
            if summary.guesses is not None:
                extra["drafted"], extra["accepted"] = summary.guesses
            end |= {k: v for k, v in extra.items() if v is not None}
            click.echo(json.dumps(end | {"options": summary.options}, ensure_ascii=False))
        else:
            if not self._alternatives:
                click.echo()
            precision = f", {summary.precision}" if summary.precision else ""
            rate = f", {summary.rate:.1f} tok/s" if summary.rate else ""
            rate += f", {speculation(*summary.guesses)}" if summary.guesses is not None else ""
            click.echo(f"{summary.tokens} tokens, {summary.finish}{rate}, seed {seed}{precision}", err=True)
        if self.broken:
            click.echo(incomplete(summary.finish, summary.tokens), err=True)

    def _fields(self, record: TokenRecord, decode: Callable[[int], bytes]) -> dict[str, Any]:
        fields = record_fields(record) | {"finish_reason": record.finish_reason}
        if self._alternatives:
            fields["top"] = top_fields(record, decode)[: self._alternatives]
        return fields

    def _line(self, record: TokenRecord, decode: Callable[[int], bytes]) -> str:
        tops = top_fields(record, decode)[: self._alternatives]
        others = "  ".join(f"{shown(top['text'])} {probability(top['logprob'])}" for top in tops)
        own = shown(record.token_bytes.decode(errors="replace"))
        return f"{own:<16} {probability(record.logprob)}  rank {record.rank or '-':<5} | {others}"


def record_fields(record: TokenRecord) -> dict[str, Any]:
    """A token's own numbers as JSON values."""
    return {
        "id": record.token_id,
        "text": record.text,
        "bytes": record.token_bytes.hex(),
        "logprob": record.logprob,
        "rank": record.rank,
        "entropy": record.entropy,
    }


def top_fields(record: TokenRecord, decode: Callable[[int], bytes]) -> list[dict[str, Any]]:
    """A token's alternatives as JSON values."""
    pairs = zip(record.top_ids, record.top_logprobs, strict=True)
    return [{"id": token, "text": decode(token).decode(errors="replace"), "logprob": value} for token, value in pairs]


class Wrapper:
    """Writes text as it comes, with line breaks between words; lines inside ``` fences stay whole.

    Escape sequences are left out. A word is written when it has ended.

    Args:
        stream: The output.
        width: Columns of the terminal; None writes everything as it is.
    """

    def __init__(self, stream: TextIO, width: int | None) -> None:
        self._stream = stream
        self._width = width
        self._column = 0
        self._gap, self._word, self._line = "", "", ""
        self._fenced = self._joins = False

    def write(self, text: str) -> None:
        if self._width is None:
            self._put(text)
            return
        for char in without_controls(text):
            self._add(char)
        if self._fenced:
            self._flush()
        self._stream.flush()

    def end(self) -> None:
        self._flush()
        self._put("\n")

    def _add(self, char: str) -> None:
        width = cell_len(char)
        if char == "\n":
            self._flush()
            self._fenced ^= self._line.lstrip().startswith("```")
            self._put("\n")
            self._column, self._gap, self._line = 0, "", ""
            return
        self._line += char
        if char in " \t":
            self._flush()
            self._gap += "    " if char == "\t" else char
        elif width == 2 and not self._joins:  # a script without spaces breaks between any two characters
            self._flush()
            self._word = char
        else:
            self._word += char
        self._joins = char == ZERO_WIDTH_JOINER

    def _flush(self) -> None:
        """Writes the pending word, on the next line if it does not fit on this one."""
        if not self._word:
            return
        width = cell_len(self._word)
        assert self._width is not None
        if not self._fenced and self._column and self._column + len(self._gap) + width > self._width:
            self._stream.write("\n")
            self._column, self._gap = 0, ""
        self._stream.write(self._gap + self._word)
        self._column = (self._column + len(self._gap) + width - 1) % self._width + 1
        self._gap = self._word = ""

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def token_table(run: TokenRun, decode: Callable[[int], bytes], *, first: int = 0) -> Table:
    """A table of the tokens of a run: their numbers and alternatives."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "token", "p", "logprob", "rank", "entropy", "instead"):
        table.add_column(name, justify="left" if name in ("token", "instead") else "right", no_wrap=name != "instead")
    for at, record in enumerate(run, first):
        pairs = zip(record.top_ids, record.top_logprobs, strict=True)
        instead = "  ".join(
            f"{shown(decode(t).decode(errors='replace'))} {probability(p)}" for t, p in pairs if t != record.token_id
        )
        numbers = [
            "-" if record.logprob is None else probability(record.logprob),
            "-" if record.logprob is None else f"{record.logprob:.3f}",
            "-" if record.rank is None else str(record.rank),
            "-" if record.entropy is None else f"{record.entropy:.2f}",
        ]
        token = Text(shown(record.token_bytes.decode(errors="replace")), style=surprise_style(record.logprob))
        table.add_row(str(at), token, *numbers, Text(instead))
    return table


def surprise_style(logprob: float | None) -> str:
    """The colour of a token: warmer for a less likely one."""
    if logprob is None or logprob > LIKELY:
        return ""
    return "yellow" if logprob > UNLIKELY else "red"


def speculation(drafted: int, accepted: int) -> str:
    """Drafted and accepted tokens in words."""
    if not drafted:
        return "drafted nothing"
    return f"drafted {drafted:,}, accepted {accepted:,} ({100 * accepted // drafted} %)"


def incomplete(finish: str | None, tokens: int) -> str:
    """The message for an answer whose output format is incomplete, or not valid JSON for its schema."""
    if finish in (Finish.EOS.label, Finish.GRAMMAR.label):
        return f"incomplete: the answer ended ({finish}) after {tokens:,} tokens, {UNSOUND}"
    way_out = {"length": "; allow more with --max-tokens", "stop": "; a --stop text cut it"}.get(finish or "", "")
    return f"incomplete: the answer ended ({finish}) after {tokens:,} tokens, before it had the form asked for{way_out}"


def shown(text: str) -> str:
    """A token on one line: spaces and control characters made visible."""
    return "".join("␣" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)


def probability(logprob: float | None) -> str:
    """The probability with three decimals; a dash if unknown."""
    return "  -  " if logprob is None else f"{math.exp(logprob):.3f}"


_COLUMNS = ("name", "title", "parameters", "size", "format", "context", "runs on", "state")
_RIGHT = ("parameters", "size", "context")


def shelf_table(entries: list[ShelfEntry], adapters: list[ShelvedAdapter]) -> Table:
    """A table of models, then of adapters with their base models, one per row."""
    table = headed(*_COLUMNS, right=_RIGHT)
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
    """A table of the facts about one model, followed by the rows `more`."""
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
    return rows_table((name, Text(one_line(value))) for name, value in rows.items() if value)


def facts(entry: ShelfEntry) -> dict[str, Any]:
    """The facts about one model as JSON values."""
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
    """The message for a new model on the shelf."""
    form = f" ({quantised})" if quantised else ""
    return f"{name}: ready in {path}{form}; use it with: elsewise ask --model {name}"


def without_controls(text: str) -> str:
    """A text of several lines without escape sequences and other control characters."""
    return "".join(char for char in text if char in "\n\t" or (char >= " " and not "\x7f" <= char <= "\x9f"))


def for_stdout(text: str) -> str:
    """A text of several lines for stdout: without control characters on a terminal, unchanged elsewhere."""
    return without_controls(text) if sys.stdout.isatty() else text


def one_line(text: str) -> str:
    """An untrusted text without control characters; spaces of all kinds and joiners of emoji and letters stay."""
    return "".join(
        char if char.isprintable() or category(char) == "Zs" or char in f"{ZERO_WIDTH_JOINER}\u200c" else "?" for char in text
    )


def _format(entry: ShelfEntry) -> str:
    return f"{entry.quantisation}, {entry.format}" if entry.quantisation else entry.format


def _backend(name: str) -> str:
    state = available_backends().get(name)
    return name if state is True else f"{name} (not here: {state})"


def _count(parameters: int | None) -> str:
    return f"{parameters / 1e6:,.0f} M" if parameters else "-"


_WIDTH = 24  # of the bar


def fit_rows(found: list[Fit]) -> dict[str, str]:
    """The memory a model needs on each engine, as rows."""
    rows: dict[str, str] = {}
    for fit in found:
        rows[f"fit ({fit.backend})"] = f"{bar(fit)} about {_gb(fit.total)} of {_gb(fit.memory)}, {_gb(fit.free)} free now"
        parts = f"engine {_gb(fit.libraries)}, weights {_gb(fit.weights)}, work {_gb(fit.working)}"
        moment = f", {_gb(fit.loading)} more while it is loaded" if fit.loading else ""
        rows[f"of it ({fit.backend})"] = f"{parts}, KV {_gb(fit.kv)} for {fit.context:,} tokens{moment}"
        if not fit.fits:
            way = (
                f"a context of {fit.longest:,} tokens fits"
                if fit.longest
                else "not even a short context fits: --offload disk (hf)"
            )
            rows[f"too large ({fit.backend})"] = way
    return rows


def fit_facts(found: list[Fit]) -> list[dict[str, Any]]:
    """The memory a model needs on each engine, as JSON values."""
    return [asdict(fit) | {"total": fit.total, "fits": fit.fits} for fit in found]


def fit_word(fit: Fit) -> str:
    """Whether a model fits, in a word or two."""
    return "fits" if fit.fits else f"{fit.longest:,} tokens fit" if fit.longest else "too large"


def bar(fit: Fit) -> str:
    """The share of the machine's memory, as a bar."""
    share = min(fit.total / fit.memory, 1.0) if fit.memory else 1.0
    full = max(round(share * _WIDTH), 1)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}]"


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size < 100e9 else f"{size / 1e9:,.0f} GB"


def measured_rows(entry: ShelfEntry) -> dict[str, str]:
    """Measured perplexities and thread timings of a model, as rows."""
    if entry.fingerprint is None:
        return {}
    rows = {f"perplexity ({found.weights})": str(found) for found in measured_perplexities(entry.fingerprint)}
    for what, found in measured_threads(entry.fingerprint).items():
        weights, _, machine = what.partition(", ")
        laps = ", ".join(f"{count}: {seconds * 1000:.1f} ms" for count, seconds in sorted(found.items()))
        rows[f"threads ({weights})"] = f"{laps} a token ({machine})"
    return rows


def measured_facts(entry: ShelfEntry) -> dict[str, Any]:
    """Measured perplexities and thread timings of a model, as JSON values."""
    if entry.fingerprint is None:
        return {}
    return {
        "perplexity": [asdict(found) for found in measured_perplexities(entry.fingerprint)],
        "thread_seconds": measured_threads(entry.fingerprint),
    }
