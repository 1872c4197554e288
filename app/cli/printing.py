"""How an answer looks in a terminal: text, a line per token, or JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import click

from runtime import Finish, TokenRecord, TokenRun

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
