"""`elsewise ask --batch`: many requests in one batch, a JSON line each, written when it is done."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
from rich.progress import BarColumn, Progress, TextColumn

from app.cli.asking import Asked
from app.cli.common import console, load_model, told_precision
from app.cli.group import ESCAPE
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


class Results:
    """The file, or stdout, that results are written to, each when it is there.

    Args:
        out: The file; None for stdout.
        written: How many answers it has.
    """

    def __init__(self, out: Path | None, written: int = 0) -> None:
        self.out = out
        self.written = written
        self._file: TextIO | None = None if out is None else out.open("a", encoding="utf-8", errors=ESCAPE, newline="\n")

    def write(self, answer: Mapping[str, Any]) -> None:
        """One line, which is in the file when this returns."""
        click.echo(json.dumps(answer, ensure_ascii=False), file=self._file)  # it flushes
        self.written += 1

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def answered(out: Path, file: str, lines: Sequence[Line]) -> set[int]:
    """The numbers of the lines that a file of results has answers to; answers that failed, and half a last line, are removed.

    Raises:
        click.ClickException: It cannot be read, or has something else in it than answers to these lines.
    """
    ids = {line.number: line.id for line in lines}
    found: set[int] = set()
    part = out.with_name(f".{out.name}.part{os.getpid()}")
    try:
        with out.open("rb") as results, part.open("wb") as kept:
            for at, text in enumerate(results, 1):
                try:
                    answer = json.loads(text)
                except (ValueError, RecursionError):
                    if text.endswith(b"\n"):
                        raise click.ClickException(
                            f"{out}, line {at:,}: not JSON; repair it, or choose another --out"
                        ) from None
                    break  # cut off where it was stopped
                number = answer.get("line") if isinstance(answer, dict) else None
                if not isinstance(number, int) or number not in ids or answer.get("id") != ids[number]:
                    raise click.ClickException(
                        f"{out}, line {at:,}: it answers no line of {file}, whose results go on in the file they are in; "
                        "choose another --out"
                    )
                if "error" not in answer:
                    found.add(number)
                    kept.write(text.rstrip(b"\r\n") + b"\n")
        part.replace(out)
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return found


def answer_batch(file: str, asked: Asked, out: Path | None = None, *, resume: bool = False) -> None:
    """Answers every line of a file.

    Args:
        file: The lines.
        asked: The command's options.
        out: Where the results go; None: to stdout.
        resume: Whether lines that `out` answers already are passed over.

    Raises:
        click.UsageError: Lines that cannot be asked; nothing was computed.
        click.ClickException: `out` is there already, or cannot be gone on with.
        click.exceptions.Exit: With 1, where an answer failed or has not the form asked for.
    """
    lines = read_lines(file, asked)
    there: set[int] = set()
    if out is not None and out.exists():
        if not resume:
            raise click.ClickException(f"{out} is there already; go on with it (--resume), or choose another name")
        there = answered(out, file, lines)
    left = [line for line in lines if line.number not in there]
    if there:
        click.echo(f"{len(there):,} of {len(lines):,} lines are answered in {out} already", err=True)
    if not left:
        return
    try:
        results = Results(out, len(there))
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror}") from error
    try:
        with load_model(asked.model, asked.backend, **asked.load) as model:
            tally = asyncio.run(_answer_all(file, model, left, asked, results))
            precision = told_precision(model)
    except (KeyboardInterrupt, OSError):
        where = (
            f"{out}; the same command with --resume goes" if out else "stdout; the same command with --out FILE --resume goes"
        )
        click.echo(f"{results.written:,} of {len(lines):,} answers were written to {where} on where this one stopped", err=True)
        raise
    finally:
        results.close()
    _sum_up(len(left), tally, precision)


def _sum_up(count: int, tally: Tally, precision: str) -> None:
    """What the answers were, on stderr.

    Raises:
        click.exceptions.Exit: With 1, where one failed or has not the form asked for.
    """
    said = f"{count:,} answers, {tally.tokens:,} tokens"
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


async def _answer_all(file: str, model: LanguageModel, lines: Sequence[Line], asked: Asked, results: Results) -> Tally:
    requests = await _requests(file, model, lines, asked)
    gate = asyncio.Semaphore(AT_ONCE)
    with _bar() as bar:
        tally = Tally(bar, len(lines))

        async def one(line: Line, request: Request) -> None:
            async with gate:
                results.write(await _answer(model, line, request, tally))
            tally.ended()

        tasks = [asyncio.create_task(one(line, request)) for line, request in zip(lines, requests, strict=True)]
        try:
            await asyncio.gather(*tasks)
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
    result: dict[str, Any] = {"id": line.id, "line": line.number}
    if line.custom:
        result["custom_id"] = line.id
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
