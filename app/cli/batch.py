"""`elsewise ask --batch`: many requests in one batch, a JSON line each, in the order asked."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from app.cli.asking import Asked
from app.cli.common import console, load_model, told_precision
from app.cli.lines import Line, read_lines, refuse
from app.cli.printing import UNSOUND
from app.cli.spelling import in_json
from app.cli.values import with_token_ids
from runtime import Finish, GenerationOptions, LanguageModel, RuntimeFault, ToolCallError, check_fits, parse_tool_calls

Request = tuple[list[int], GenerationOptions]
AT_ONCE = 256  # requests handed to the scheduler, which takes as many into one forward as its limits allow


class Tally:
    """What the last line on stderr says, and the bar while it goes on."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("answering", total=total, tokens=0)
        self.tokens = 0
        self.failed = 0
        self.broken = 0
        self.unsound = 0  # of the broken ones

    def count(self, tokens: int) -> None:
        """Tokens that arrived."""
        self.tokens += tokens
        self._bar.update(self._task, tokens=self.tokens)

    def ended(self) -> None:
        """One more answer."""
        self._bar.advance(self._task)


def answer_batch(file: str, asked: Asked) -> None:
    """Answers every line of a file.

    Raises:
        click.UsageError: Lines that cannot be asked; nothing was computed.
        click.exceptions.Exit: With 1, where an answer failed or has not the form asked for.
    """
    lines = read_lines(file, asked)
    with load_model(asked.model, asked.backend, **asked.load) as model:
        tally = asyncio.run(_answer_all(file, model, lines, asked))
        precision = told_precision(model)
    said = f"{len(lines):,} answers, {tally.tokens:,} tokens"
    click.echo(", ".join(filter(None, (said, precision))), err=True)
    if tally.broken > tally.unsound:
        cut = tally.broken - tally.unsound
        click.echo(f'{cut:,} of them incomplete ("incomplete": true): allow more with --max-tokens', err=True)
    if tally.unsound:
        click.echo(f'{tally.unsound:,} of them incomplete ("incomplete": true), {UNSOUND}', err=True)
    if tally.failed:
        click.echo(f'{tally.failed:,} of them failed ("error" says why)', err=True)
    if tally.failed or tally.broken:
        raise click.exceptions.Exit(1)


async def _answer_all(file: str, model: LanguageModel, lines: Sequence[Line], asked: Asked) -> Tally:
    requests = await _requests(file, model, lines, asked)
    gate = asyncio.Semaphore(AT_ONCE)
    with _bar() as bar:
        tally = Tally(bar, len(lines))

        async def one(line: Line, request: Request) -> dict[str, Any]:
            async with gate:
                answer = await _answer(model, line, request, tally)
            tally.ended()
            return answer

        tasks = [asyncio.create_task(one(line, request)) for line, request in zip(lines, requests, strict=True)]
        try:
            for task in tasks:
                click.echo(json.dumps(await task, ensure_ascii=False))
        finally:  # the reader has gone, or Ctrl-C
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return tally


async def _requests(file: str, model: LanguageModel, lines: Sequence[Line], asked: Asked) -> list[Request]:
    """The ids of every line, and its options.

    Raises:
        click.UsageError: Some cannot be rendered, do not fit into the context, or ask for what the model has not.
    """
    requests: list[Request] = []
    faults: list[str] = []
    if model.chat_template is None and any(line.messages is not None for line in lines):
        raise click.UsageError(f"{model.info.name} has no chat template: continue texts with --raw, or choose a --format")
    for line in lines:
        try:
            named = with_token_ids(line.naming, model.byte_vocab) if line.naming else {}
            options = asked.options(model, line.options | named)
            options.check_within(model.info.vocab_size)
            ids = await _ids(model, line)
        except RuntimeFault as fault:
            faults.append(f"line {line.number}: {in_json(fault)}")
            continue
        requests.append((ids, options))
        if len(ids) > model.info.context_length:
            over = f"{len(ids):,} tokens do not fit into the context of {model.info.context_length:,}"
            faults.append(f"line {line.number}: {over}; shorten the text")
    refuse(file, faults)
    return requests


async def _ids(model: LanguageModel, line: Line) -> list[int]:
    contents = [line.prompt] if line.messages is None else [message.get("content") for message in line.messages]
    check_fits(model, *(text for text in contents if isinstance(text, str)))
    if line.messages is not None:
        return await model.render_chat_async(line.messages, tools=line.tools)
    assert line.prompt is not None  # one of the two is there
    return await model.tokenize_async(line.prompt)


async def _answer(model: LanguageModel, line: Line, request: Request, tally: Tally) -> dict[str, Any]:
    """The line's result; an answer that fails does not take the others down."""
    ids, options = request
    pieces: list[str] = []
    tokens, finish = 0, Finish.NONE
    result: dict[str, Any] = {"id": line.id}
    try:
        async with aclosing(model.generate_runs(ids, options)) as runs:
            async for run in runs:
                pieces.extend(text for text, end in zip(run.texts, run.by_eos.tolist(), strict=True) if not end)
                tokens += len(run)
                tally.count(len(run))
                finish = Finish(int(run.finish[-1]))
    except RuntimeFault as fault:
        tally.failed += 1
        result["error"] = in_json(fault)
    text = "".join(pieces)
    incomplete = finish.incomplete or "error" in result
    tally.broken += incomplete and options.grammar is not None and "error" not in result
    tally.unsound += finish.unsound and "error" not in result
    result |= {"text": text, "tokens": tokens, "finish_reason": finish.label, "seed": options.seed}
    result["incomplete"] = incomplete
    if line.tools:
        result |= _calls(text, line.tools)
    return result


def _calls(text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """What of an answer are calls of the tools offered; nothing is executed."""
    try:
        found = parse_tool_calls(text, tools=tools)
    except ToolCallError as fault:
        return {"tool_call_error": str(fault)}
    return {"tool_calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in found.calls]}


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on stderr, where somebody looks and the answers go elsewhere."""
    columns = (
        TextColumn("answering"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}, {task.fields[tokens]:,} tokens"),
    )
    hidden = not console.is_terminal or sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False) as bar:
        yield bar
