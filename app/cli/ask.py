"""`elsewise ask`: one answer, alone or in a saved session, or with --batch one for each line of a file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO, Unpack

import click
from rich.progress import BarColumn, Progress, TextColumn

from app.cli.common import console, read_text, reading
from app.cli.options import (
    OPTION_HINTS,
    PRESET,
    AnswerOptions,
    Flags,
    answer_options,
    grammar_of,
    in_json,
    load_model,
    naming_tokens,
    precision_note,
    with_token_ids,
)
from app.cli.printing import UNSOUND, Printer
from app.cli.saved_session import ask_saved
from app.cli.settings import ESCAPE, TEXT, CliSettings
from app.workbench.answers.provenance import plain_options
from app.workbench.setup.values import options_with_sources
from runtime import (
    OPTION_NAMES,
    Finish,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    PromptProgress,
    RuntimeFault,
    ToolCallError,
    check_fits,
    parse_tool_calls,
    resolve_options,
)

EXAMPLES = """\b
Examples:
  elsewise ask "Name three colours." --alternatives 5
  elsewise ask "Once upon a time" --raw --temperature 1 --seed 7
  elsewise ask "One, two, three," --raw --temperature 0 --stop seven
  elsewise ask "Is water wet?" --regex "(yes|no)"
  elsewise ask "Tell a story." --option typical_p=0.9 --option dry_multiplier=0.8
  elsewise ask --batch questions.jsonl --out answers.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("text", type=TEXT, required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --batch: write the results to this file.",
)
@click.option("--resume", is_flag=True, help="With --batch and --out: skip lines that the file already answers.")
@answer_options
@click.pass_obj
def ask(settings: CliSettings, text: str | None, out: Path | None, resume: bool, **flags: Unpack[Flags]) -> None:
    """Answers TEXT, or with --batch every line of a file."""
    asked = AnswerOptions.of(settings, flags)
    if flags["batch"] is not None:
        if text is not None:
            raise click.UsageError("--batch takes its texts from the file: leave out TEXT")
        if resume and out is None:
            raise click.UsageError("--resume goes on in a file: name it with --out")
        answer_batch(flags["batch"], asked, out, resume=resume)
        return
    if out is not None or resume:
        raise click.UsageError("--out and --resume go with --batch")
    if text is None:
        raise click.UsageError('TEXT is missing: elsewise ask "Name three colours." (or --batch FILE)')
    if not text.strip():
        raise click.UsageError("TEXT is empty; write a message")
    printer = Printer(asked.alternatives, asked.as_json, formed=asked.formed)
    if flags["session"] is not None:
        saved = asyncio.run(ask_saved(settings.data, flags["session"], text, asked, printer.run))
        facts = saved._asdict()
        seed = facts.pop("seed")
        printer.summary = replace(printer.summary, **facts)
    else:
        seed = asked.seed
        with load_model(asked.model, asked.backend, **asked.load) as model:
            asyncio.run(_stream(model, text, asked, printer))
    printer.end(seed)
    if printer.broken:
        raise click.exceptions.Exit(1)


async def _stream(model: LanguageModel, text: str, asked: AnswerOptions, printer: Printer) -> None:
    ids = await prompt_ids(model, text, asked)
    resolved = asked.resolved(model)
    options = options_with_sources(plain_options(resolved.options), resolved.sources)
    printer.summary = replace(
        printer.summary, options=options, precision=precision_note(model), model=model.info.name, backend=model.info.backend
    )
    request = 0
    with ExitStack() as bar:
        show = bar.enter_context(reading())

        def on_progress(progress: PromptProgress) -> None:
            nonlocal request
            show(progress)
            request = progress.request
            if progress.done == progress.total:
                bar.close()  # the answer follows
                printer.summary = replace(printer.summary, reused=progress.reused, computed=progress.computed)

        async with aclosing(model.generate_runs(ids, resolved.options, on_progress=on_progress)) as runs:
            async for run in runs:
                printer.run(run, model.decode_token)
    metrics = model.metrics()
    printer.summary = replace(printer.summary, rate=metrics.tokens_per_second)
    took = metrics.request(request)
    if took is not None:  # a server reports its cache hits at the end
        printer.summary = replace(printer.summary, reused=took.reused, computed=took.computed)
    if resolved.options.speculative is not None and took is not None:
        printer.summary = replace(printer.summary, guesses=(took.drafted, took.accepted))


async def prompt_ids(model: LanguageModel, text: str, asked: AnswerOptions) -> list[int]:
    """The ids of the text as a message of the chat template, or as plain text with --raw or without a template.

    Raises:
        click.UsageError: A system prompt without a template.
    """
    if asked.raw:
        return await model.tokenize_async(text)
    if model.chat_template is None:
        if asked.system:
            raise click.UsageError(f"--system: {model.info.name} has no chat template; give it one, such as --format plain")
        click.echo(f"{model.info.name} has no chat template: TEXT is continued (--format plain gives it roles)", err=True)
        return await model.tokenize_async(text)
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    return await model.render_chat_async([*system, {"role": "user", "content": text}])


FORMS = ("schema", "regex", "lark")
IGNORED = frozenset({"model", "stream", "stream_options", "user", "metadata", "store", "service_tier"})  # of OpenAI's bodies
ENVELOPE = frozenset({"custom_id", "method", "url", "body"})  # fields of a line of OpenAI's Batch API
CHATS = ("/v1/chat/completions", "/v1/completions")
OWN = frozenset({"id", "prompt", "messages", "system", "tools", *FORMS})
RECORDING = frozenset({"alternatives", "logprobs", "top_logprobs", "stages"})  # results do not have these numbers
KNOWN = OWN | OPTION_NAMES - RECORDING
_SHOWN = 5  # most faults listed in one message


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch.

    Attributes:
        number: The line's number, from 1.
        id: The line's own id, or its number.
        custom: Whether the id was given as `custom_id`, and is returned under that name.
        messages: The conversation; None if `prompt` has a text to continue.
        options: Its options by the names of `GenerationOptions.from_mapping`, with a seed.
        naming: The options that give tokens by their text (see `naming_tokens`).
    """

    number: int
    id: str | int
    custom: bool
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]
    naming: dict[str, Any]


def read_lines(file: str, asked: AnswerOptions) -> list[BatchLine]:
    """The requests of a file, one for each line that is not blank.

    Raises:
        click.UsageError: Some lines are not valid requests; lists them with their faults.
        click.ClickException: The file cannot be read.
    """
    lines: list[BatchLine] = []
    faults: list[str] = []
    first: dict[str | int, int] = {}  # the line of each `custom_id`
    for number, text in enumerate(read_text(file).split("\n"), 1):
        if text.strip():
            try:
                line = _line(number, text, asked, len(lines))
                if line.custom and (other := first.setdefault(line.id, number)) != number:
                    raise InvalidRequestError(f'"custom_id" {line.id!r:.60} is that of line {other:,}, too; give each its own')
                lines.append(line)
            except (InvalidRequestError, RuntimeFault) as fault:
                faults.append(f"line {number}: {in_json(fault)}")
    refuse(file, faults)
    if not lines:
        raise click.UsageError(f'{file}: no lines; write one such as {{"prompt": "Name three colours."}}')
    return lines


def refuse(file: str, faults: list[str]) -> None:
    """Ends the command if there are faults.

    Raises:
        click.UsageError: There are some; lists the first `_SHOWN`.
    """
    if faults:
        more = f"\n  and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else ""
        listed = "".join(f"\n  {fault}" for fault in faults[:_SHOWN])
        raise click.UsageError(f"{file}: nothing was asked, for these cannot be:{listed}{more}")


def _line(number: int, text: str, asked: AnswerOptions, place: int) -> BatchLine:
    entry = _unwrapped(_object(text))
    custom = "custom_id" in entry
    entry = {"id" if name == "custom_id" else name: value for name, value in entry.items()}
    unknown = next((name for name in entry if name not in KNOWN), None)
    if unknown is not None:
        close = get_close_matches(unknown, KNOWN, n=1)
        hint = f"use {OPTION_HINTS[unknown]}" if unknown in OPTION_HINTS else f"known: {', '.join(sorted(KNOWN))}"
        hint = f"did you mean {close[0]!r}?" if close and unknown not in OPTION_HINTS else hint
        raise InvalidRequestError(f"unknown name {unknown[:60]!r}: {hint}")
    given = {name: value for name, value in entry.items() if value is not None}
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidRequestError('give one of "prompt" and "messages"')
    if prompt is not None and not (isinstance(prompt, str) and prompt.strip()):
        raise InvalidRequestError('"prompt" is a text that is not empty')
    if messages is not None and asked.raw:
        raise InvalidRequestError('"messages" have roles: leave out --raw, or give a "prompt"')
    own_id = given.get("id", number)
    if isinstance(own_id, bool) or not isinstance(own_id, str | int):
        raise InvalidRequestError(f'"id" is a text or a whole number, not {own_id!r:.60}')
    roles = next((name for name in ("tools", "system") if name in given), None)
    if roles is not None and asked.raw:
        raise InvalidRequestError(f'"{roles}" needs a chat: leave out --raw')
    naming = naming_tokens(given)
    return BatchLine(
        number=number,
        id=own_id,
        custom=custom,
        prompt=prompt if asked.raw else None,
        messages=None if asked.raw else _messages(given, asked),
        tools=given.get("tools"),
        options=_options({name: value for name, value in given.items() if name not in naming}, asked, place),
        naming=naming,
    )


def _unwrapped(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of a line of OpenAI's Batch API, with its `custom_id`; any other line without `stream`."""
    if "body" not in entry:
        return {name: value for name, value in entry.items() if not (name == "stream" and isinstance(value, bool))}
    unknown = next((name for name in entry if name not in ENVELOPE), None)
    if unknown is not None:
        raise InvalidRequestError(f'unknown name {unknown[:60]!r} beside "body": known: {", ".join(sorted(ENVELOPE))}')
    body, url = entry["body"], entry.get("url", CHATS[0])
    if not isinstance(body, dict):
        raise InvalidRequestError(f'"body" is an object, not {body!r:.60}')
    if url not in CHATS:
        raise InvalidRequestError(f'"url" is {" or ".join(CHATS)}, not {url!r:.60}; elsewise embed makes vectors')
    if body.get("n", 1) != 1:
        raise InvalidRequestError(f'"n" is {body["n"]!r:.60}: one answer is given to a line; write the line several times')
    asked = {name: value for name, value in body.items() if name not in IGNORED and name != "n"}
    return asked | ({"custom_id": entry["custom_id"]} if "custom_id" in entry else {})


def _object(text: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidRequestError(f"not JSON ({fault})") from fault
    if not isinstance(entry, dict):
        raise InvalidRequestError(f"a JSON object is needed, not {type(entry).__name__}")
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError as fault:
        raise InvalidRequestError("a text in it holds half of a character (a lone surrogate); remove it") from fault
    return entry


def _messages(given: Mapping[str, Any], asked: AnswerOptions) -> list[dict[str, Any]]:
    messages = given.get("messages", [{"role": "user", "content": given.get("prompt")}])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequestError('"messages" is a list of {"role": ..., "content": ...}')
    system = given.get("system", asked.system)
    if system is not None and not isinstance(system, str):
        raise InvalidRequestError(f'"system" is a text, not {system!r:.60}')
    if system and not any(message.get("role") == "system" for message in messages):
        return [{"role": "system", "content": system}, *messages]
    return messages


def _options(given: Mapping[str, Any], asked: AnswerOptions, place: int) -> dict[str, Any]:
    """The line's options; the command's seed counts up per line, so that answers to equal prompts differ."""
    options = {name: value for name, value in given.items() if name not in OWN}
    options.setdefault("seed", (asked.seed + place) % (1 << 64))
    if any(form in given for form in FORMS):
        if "grammar" in options:
            raise InvalidRequestError("a grammar beside a schema, a regex or a lark contradicts it: give one of them")
        options["grammar"] = grammar_of(*(given.get(form) for form in FORMS))
    checked = resolve_options(options, session=asked.call, preset=PRESET).options
    if checked.grammar is not None:
        checked.grammar.check()
    return options | {"alternatives": 0}


Request = tuple[list[int], GenerationOptions]
AT_ONCE = 256  # requests in the scheduler, which batches as many as its limits allow


class Tally:
    """Counts for the summary on stderr, and the progress bar."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("answering", total=total, tokens=0)
        self.tokens = 0
        self.failed = 0
        self.broken = 0
        self.unsound = 0  # broken answers that reached their end, but are not the JSON asked for

    def count(self, tokens: int) -> None:
        self.tokens += tokens
        self._bar.update(self._task, tokens=self.tokens)

    def ended(self) -> None:
        self._bar.advance(self._task)


class Results:
    """Writes each result to a file or stdout as soon as it is complete."""

    def __init__(self, out: Path | None, written: int = 0) -> None:
        self.out = out
        self.written = written
        self._is_new = out is not None and not out.exists()
        self._file: TextIO | None = None if out is None else out.open("a", encoding="utf-8", errors=ESCAPE, newline="\n")

    def write(self, answer: Mapping[str, Any]) -> None:
        """Writes one line, which is in the file on return."""
        click.echo(json.dumps(answer, ensure_ascii=False), file=self._file)  # `echo` flushes
        self.written += 1

    def close(self) -> None:
        """Closes the file; removes a new empty one, so that the command can be repeated."""
        if self.out is not None and self._file is not None:
            self._file.close()
            if self._is_new and not self.written:
                self.out.unlink(missing_ok=True)


def answered(out: Path, file: str, lines: Sequence[BatchLine]) -> set[int]:
    """The numbers of the lines that a result file answers; failed answers and a cut last line are removed from it.

    Raises:
        click.ClickException: It cannot be read, or has other contents than answers to these lines.
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
                    break  # the last line was cut
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


def answer_batch(file: str, asked: AnswerOptions, out: Path | None = None, *, resume: bool = False) -> None:
    """Answers every line of a file.

    Args:
        file: The lines.
        asked: The command's options.
        out: The file for the results; None: stdout.
        resume: Whether to skip the lines that `out` answers already.

    Raises:
        click.UsageError: Some lines cannot be asked; nothing was computed.
        click.ClickException: `out` exists already, or cannot be resumed.
        click.exceptions.Exit: With 1, if an answer failed or lacks the output format.
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
            precision = precision_note(model)
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
    """Prints the summary on stderr.

    Raises:
        click.exceptions.Exit: With 1, if an answer failed or lacks the output format.
    """
    counts = f"{count:,} answers, {tally.tokens:,} tokens"
    click.echo(", ".join(filter(None, (counts, precision))), err=True)
    if tally.broken > tally.unsound:
        cut = tally.broken - tally.unsound
        click.echo(f'{cut:,} of them incomplete ("incomplete": true): allow more with --max-tokens', err=True)
    if tally.unsound:
        click.echo(f'{tally.unsound:,} of them incomplete ("incomplete": true), {UNSOUND}', err=True)
    if tally.failed:
        click.echo(f'{tally.failed:,} of them failed ("error" says why)', err=True)
    if tally.failed or tally.broken:
        raise click.exceptions.Exit(1)


async def _answer_all(
    file: str, model: LanguageModel, lines: Sequence[BatchLine], asked: AnswerOptions, results: Results
) -> Tally:
    requests = await _requests(file, model, lines, asked)
    gate = asyncio.Semaphore(AT_ONCE)
    with _bar() as bar:
        tally = Tally(bar, len(lines))

        async def one(line: BatchLine, request: Request) -> None:
            async with gate:
                results.write(await _answer(model, line, request, tally))
            tally.ended()

        tasks = [asyncio.create_task(one(line, request)) for line, request in zip(lines, requests, strict=True)]
        try:
            await asyncio.gather(*tasks)
        finally:  # the reader closed the pipe, or Ctrl-C
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return tally


async def _requests(file: str, model: LanguageModel, lines: Sequence[BatchLine], asked: AnswerOptions) -> list[Request]:
    """The ids and the options of every line.

    Raises:
        click.UsageError: Some cannot be rendered, do not fit into the context, or need what the model lacks.
    """
    requests: list[Request] = []
    faults: list[str] = []
    if model.chat_template is None and any(line.messages is not None for line in lines):
        raise click.UsageError(f"{model.info.name} has no chat template: continue texts with --raw, or choose a --format")
    for line in lines:
        try:
            named = with_token_ids(line.naming, model.byte_vocab) if line.naming else {}
            options = asked.options(model, line.options | named)
            options.check(model.info.vocab_size)
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


async def _ids(model: LanguageModel, line: BatchLine) -> list[int]:
    contents = [line.prompt] if line.messages is None else [message.get("content") for message in line.messages]
    check_fits(model, *(text for text in contents if isinstance(text, str)))
    if line.messages is not None:
        return await model.render_chat_async(line.messages, tools=line.tools)
    assert line.prompt is not None  # a line has one of the two
    return await model.tokenize_async(line.prompt)


async def _answer(model: LanguageModel, line: BatchLine, request: Request, tally: Tally) -> dict[str, Any]:
    """The line's result; a failed answer does not end the others."""
    ids, options = request
    pieces: list[str] = []
    tokens, finish = 0, Finish.NONE
    result: dict[str, Any] = {"id": line.id, "line": line.number}
    if line.custom:
        result["custom_id"] = line.id
    try:
        async with aclosing(model.generate_runs(ids, options)) as runs:
            async for run in runs:
                pieces.append(run.answer)
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
    """The tool calls in an answer; nothing is executed."""
    try:
        found = parse_tool_calls(text, tools=tools)
    except ToolCallError as fault:
        return {"tool_call_error": str(fault)}
    return {"tool_calls": [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in found.calls]}


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on stderr, if that is a terminal and stdout is not."""
    columns = (
        TextColumn("answering"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}, {task.fields[tokens]:,} tokens"),
    )
    hidden = not console.is_terminal or sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False) as bar:
        yield bar
