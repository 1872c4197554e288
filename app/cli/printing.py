"""How an answer looks in a terminal: text, a line per token, or JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TextIO

import click
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from runtime import Finish, TokenRecord, TokenRun

ZERO_WIDTH_JOINER: Final = "\u200d"  # between emoji that are one
LIKELY, UNLIKELY = math.log(0.5), math.log(0.1)  # nats; where the colours of a token's surprise change
UNSOUND = (
    "but read as JSON it is not what the schema describes: a name comes twice in an object, or a number is beyond what can be "
    "held; ask with another --seed, or name the properties in the schema and bound its numbers"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the end line says.

    Attributes:
        guesses: Tokens guessed ahead, and of them the right ones; None where nobody guessed.
        options: Every option that held, by name, with its value and who said so.
    """

    tokens: int = 0
    finish: str | None = None
    incomplete: bool = True
    reused: int | None = None
    computed: int | None = None
    rate: float | None = None
    guesses: tuple[int, int] | None = None
    precision: str = ""  # `ModelInfo.precision`; told where the weights are in another form than their dtype
    options: Mapping[str, Any] = field(default_factory=dict)


class Printer:
    """Writes tokens to stdout as they come: text, a line per token with alternatives, or JSON lines.

    Args:
        alternatives: Shown per token.
        as_json: One object a line.
        formed: The answer must have a form (schema, regex), which it only has once it has ended.
    """

    def __init__(self, alternatives: int, as_json: bool, *, formed: bool = False) -> None:
        self._alternatives = alternatives
        self._json = as_json
        self._formed = formed
        self.vocabulary: Callable[[int], bytes] = lambda token: b"%d" % token
        self.summary = Summary()

    @property
    def broken(self) -> bool:
        """Whether the answer lacks the form that was asked for."""
        return self._formed and self.summary.incomplete

    def run(self, run: TokenRun, decode: Callable[[int], bytes]) -> None:
        """Tokens that arrived."""
        self.vocabulary = decode
        for record in run:
            self.summary = replace(self.summary, tokens=self.summary.tokens + 1)
            if record.finish_reason is not None:
                self.summary = replace(self.summary, finish=record.finish_reason, incomplete=record.incomplete)
            if self._json:
                click.echo(json.dumps({"type": "token", **self._fields(record)}, ensure_ascii=False))
            elif self._alternatives:
                click.echo(self._line(record))
            elif record.finish_reason != Finish.EOS.label:
                click.echo(record.text, nl=False)

    def end(self, seed: int) -> None:
        """The last line: JSON on stdout, otherwise a summary on stderr."""
        summary = self.summary
        if self._json:
            end = {"type": "end", "tokens": summary.tokens, "finish_reason": summary.finish, "seed": seed}
            end["incomplete"] = summary.incomplete
            extra = {"reused": summary.reused, "computed": summary.computed, "tokens_per_second": summary.rate}
            end |= {"precision": summary.precision} if summary.precision else {}
            if summary.guesses is not None:
                extra["drafted"], extra["accepted"] = summary.guesses
            end |= {k: v for k, v in extra.items() if v is not None}
            click.echo(json.dumps(end | {"options": summary.options}, ensure_ascii=False))
        else:
            if not self._alternatives:
                click.echo()
            told = f", {summary.precision}" if summary.precision else ""
            rate = f", {summary.rate:.1f} tok/s" if summary.rate else ""
            rate += f", {guessed(*summary.guesses)}" if summary.guesses is not None else ""
            click.echo(f"{summary.tokens} tokens, {summary.finish}{rate}, seed {seed}{told}", err=True)
        if self.broken:
            click.echo(incomplete(summary.finish, summary.tokens), err=True)

    def _fields(self, record: TokenRecord) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": record.token_id,
            "text": record.text,
            "bytes": record.token_bytes.hex(),
            "logprob": record.logprob,
            "rank": record.rank,
            "entropy": record.entropy,
            "finish_reason": record.finish_reason,
        }
        if self._alternatives:
            pairs = list(zip(record.top_ids, record.top_logprobs, strict=True))[: self._alternatives]
            fields["top"] = [{"id": t, "text": self._text(t), "logprob": p} for t, p in pairs]
        return fields

    def _line(self, record: TokenRecord) -> str:
        pairs = zip(record.top_ids, record.top_logprobs, strict=True)
        others = "  ".join(f"{shown(self._text(t))} {probability(p)}" for t, p in list(pairs)[: self._alternatives])
        own = shown(record.token_bytes.decode(errors="replace"))
        return f"{own:<16} {probability(record.logprob)}  rank {record.rank or '-':<5} | {others}"

    def _text(self, token: int) -> str:
        return self.vocabulary(token).decode(errors="replace")


class Wrapper:
    """Writes text as it comes, with line breaks between words; lines inside ``` fences stay whole.

    What a terminal would obey (escape sequences) is left out. A word is written when it has ended.

    Args:
        stream: Where to.
        width: Columns of the terminal; None writes everything as it is.
    """

    def __init__(self, stream: TextIO, width: int | None) -> None:
        self._stream = stream
        self._width = width
        self._column = 0
        self._gap, self._word, self._line = "", "", ""
        self._fenced = self._joins = False

    def write(self, text: str) -> None:
        """More of it."""
        if self._width is None:
            self._put(text)
            return
        for char in text:
            if char == "\n" or (char >= " " and not "\x7f" <= char <= "\x9f") or char == "\t":
                self._add(char)
        if self._fenced:
            self._flush()
        self._stream.flush()

    def end(self) -> None:
        """No more."""
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
        """Writes the word that was held back, in the next line where it does not fit into this one."""
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
    """A line for each token of a run: its numbers, and what else was likely.

    Args:
        run: The tokens.
        decode: The bytes of a token.
        first: The number of the first one.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "token", "p", "logprob", "rank", "entropy", "instead"):
        table.add_column(name, justify="left" if name in ("token", "instead") else "right", no_wrap=name != "instead")
    for at, record in enumerate(run, first):
        pairs = zip(record.top_ids, record.top_logprobs, strict=True)
        instead = "  ".join(
            f"{shown(decode(t).decode(errors='replace'))} {probability(p)}" for t, p in pairs if t != record.token_id
        )
        numbers = (
            ["-", "-", "-", "-"]
            if record.logprob is None or record.entropy is None
            else [probability(record.logprob), f"{record.logprob:.3f}", str(record.rank), f"{record.entropy:.2f}"]
        )
        token = Text(shown(record.token_bytes.decode(errors="replace")), style=surprise_style(record.logprob))
        table.add_row(str(at), token, *numbers, Text(instead))
    return table


def surprise_style(logprob: float | None) -> str:
    """How a token is coloured: the less likely it was, the warmer."""
    if logprob is None or logprob > LIKELY:
        return ""
    return "yellow" if logprob > UNLIKELY else "red"


def guessed(drafted: int, accepted: int) -> str:
    """Whether guessing ahead helped."""
    if not drafted:
        return "guessed nothing"
    return f"guessed {drafted:,}, kept {accepted:,} ({100 * accepted // drafted} %)"


def incomplete(finish: str | None, tokens: int) -> str:
    """What is said of an answer that ended before it had its form, or has it no more once it is read."""
    if finish in (Finish.EOS.label, Finish.GRAMMAR.label):
        return f"incomplete: the answer ended ({finish}) after {tokens:,} tokens, {UNSOUND}"
    way_out = {"length": "; allow more with --max-tokens", "stop": "; a --stop text cut it"}.get(finish or "", "")
    return f"incomplete: the answer ended ({finish}) after {tokens:,} tokens, before it had the form asked for{way_out}"


def shown(text: str) -> str:
    """A token on one line: spaces and control characters made visible."""
    return "".join("␣" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)


def probability(logprob: float | None) -> str:
    """Three decimals; a dash where nothing is known."""
    return "  -  " if logprob is None else f"{math.exp(logprob):.3f}"
