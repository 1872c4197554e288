"""`elsewise ask`: one turn in the terminal, streamed; alone, or as part of a saved session."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

import click

from app.cli.common import load_model, reading
from app.cli.saved import ask_saved
from app.cli.settings import Settings
from runtime import (
    Finish,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    PromptProgress,
    SamplingOptions,
    TokenRecord,
    TokenRun,
    fresh_seed,
)


@click.command()
@click.argument("text")
@click.option("--model", help="A model folder, a GGUF file, or a name on the shelf.")
@click.option("--backend", help="auto, hf, mlx, mock, or a registered one.")
@click.option("--top-k", "alternatives", type=click.IntRange(0, 1000), default=0, help="Show so many alternatives per token.")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 takes the likeliest token each time.")
@click.option("--sample-top-k", type=click.IntRange(0), help="Sample among so many tokens only.")
@click.option("--seed", type=click.IntRange(0), help="The same seed gives the same answer.")
@click.option("--system", help="A system prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option("--session", "session", help="Continue the saved session of this title, or create it.")
@click.option("--json", "as_json", is_flag=True, help="One object a line: tokens, then the end.")
@click.pass_obj
def ask(
    settings: Settings,
    text: str,
    model: str | None,
    backend: str | None,
    alternatives: int,
    max_tokens: int,
    temperature: float,
    sample_top_k: int | None,
    seed: int | None,
    system: str | None,
    raw: bool,
    session: str | None,
    as_json: bool,
) -> None:
    """Answers TEXT."""
    if not text.strip():
        raise click.UsageError("TEXT is empty; write a message")
    sampling = SamplingOptions(temperature=temperature, top_k=sample_top_k, top_p=0.95, min_p=0.05)
    seed = fresh_seed() if seed is None else seed
    recorded = max(alternatives, 10) if session else alternatives
    try:
        options = GenerationOptions(max_tokens=max_tokens, sampling=sampling, top_k=recorded, seed=seed).check()
    except InvalidRequestError as fault:
        raise click.UsageError(str(fault)) from fault
    if session is not None and (system or raw):
        raise click.UsageError("--session keeps its own system prompt and template: leave out --system and --raw")
    chosen, engine = model or settings.model, backend or settings.backend
    printer = Printer(alternatives, as_json)
    if session is not None:
        asyncio.run(ask_saved(settings.data, session, text, options, chosen, engine, printer.run))
        printer.end(seed)
        return
    with load_model(chosen, engine) as loaded:
        asyncio.run(_stream(loaded, text, options, system, raw, printer))
    printer.end(seed)


async def _stream(
    model: LanguageModel, text: str, options: GenerationOptions, system: str | None, raw: bool, printer: Printer
) -> None:
    if raw or model.chat_template is None:
        ids = await model.tokenize_async(text)
    else:
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
        ids = await model.render_chat_async(messages)
    printer.vocabulary = model.decode_token
    with ExitStack() as bar:
        show = bar.enter_context(reading())

        def on_progress(progress: PromptProgress) -> None:
            show(progress)
            if progress.done == progress.total:
                bar.close()  # what follows is the answer
                printer.summary = replace(printer.summary, reused=progress.reused, computed=progress.computed)

        async with aclosing(model.generate_runs(ids, options, on_progress=on_progress)) as runs:
            async for run in runs:
                printer.run(run, model.decode_token)
    printer.summary = replace(printer.summary, rate=model.metrics().tokens_per_second)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the end line says."""

    tokens: int = 0
    finish: str | None = None
    reused: int | None = None
    computed: int | None = None
    rate: float | None = None


class Printer:
    """Writes tokens to stdout as they come: text, a line per token with alternatives, or JSON lines."""

    def __init__(self, alternatives: int, as_json: bool) -> None:
        self._alternatives = alternatives
        self._json = as_json
        self.vocabulary: Callable[[int], bytes] = lambda token: b"%d" % token
        self.summary = Summary()

    def run(self, run: TokenRun, decode: Callable[[int], bytes]) -> None:
        """Tokens that arrived."""
        self.vocabulary = decode
        for record in run:
            self.summary = replace(
                self.summary, tokens=self.summary.tokens + 1, finish=record.finish_reason or self.summary.finish
            )
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
            extra = {"reused": summary.reused, "computed": summary.computed, "tokens_per_second": summary.rate}
            click.echo(json.dumps(end | {k: v for k, v in extra.items() if v is not None}))
            return
        if not self._alternatives:
            click.echo()
        rate = f", {summary.rate:.1f} tok/s" if summary.rate else ""
        click.echo(f"{summary.tokens} tokens, {summary.finish}{rate}, seed {seed}", err=True)

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


def shown(text: str) -> str:
    """A token on one line: spaces and control characters made visible."""
    return "".join("␣" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text)


def probability(logprob: float | None) -> str:
    """Three decimals; a dash where nothing is known."""
    return "  -  " if logprob is None else f"{math.exp(logprob):.3f}"
