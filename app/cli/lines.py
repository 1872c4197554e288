"""The lines of `elsewise ask --batch`: read and checked, all of them, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import click

from app.cli.asking import Asked, grammar_of
from app.cli.common import read_text
from runtime import GenerationOptions, InvalidRequestError, RuntimeFault, SamplingOptions

SAMPLING = {field.name for field in fields(SamplingOptions)}
DRAWING = {"seed", "max_tokens", "stop", "ignore_eos"}
KNOWN = {"id", "prompt", "messages", "system", "tools", "schema", "regex"} | SAMPLING | DRAWING
_SHOWN = 5  # bad lines named at once


@dataclass(frozen=True, slots=True)
class Line:
    """One request.

    Attributes:
        number: Of the line, from 1.
        id: The line's own, or its number.
        messages: A conversation; or a single text in `prompt`.
        options: How it is answered; the seed is set.
    """

    number: int
    id: str | int
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    options: GenerationOptions


def read_lines(file: str, asked: Asked) -> list[Line]:
    """Every line that is not blank.

    Raises:
        click.UsageError: Names the lines that cannot be asked, and why.
        click.ClickException: The file cannot be read.
    """
    lines: list[Line] = []
    faults: list[str] = []
    for number, text in enumerate(read_text(file).split("\n"), 1):
        if text.strip():
            try:
                lines.append(_line(number, text, asked, len(lines)))
            except (InvalidRequestError, RuntimeFault) as fault:
                faults.append(f"line {number}: {fault}")
    refuse(file, faults)
    if not lines:
        raise click.UsageError(f'{file}: no lines; write one such as {{"prompt": "Name three colours."}}')
    return lines


def refuse(file: str, faults: list[str]) -> None:
    """Ends the command where there are faults.

    Raises:
        click.UsageError: With the first of them.
    """
    if faults:
        more = f"\n  and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else ""
        listed = "".join(f"\n  {fault}" for fault in faults[:_SHOWN])
        raise click.UsageError(f"{file}: nothing was asked, for these cannot be:{listed}{more}")


def _line(number: int, text: str, asked: Asked, place: int) -> Line:
    entry = _object(text)
    unknown = next((name for name in entry if name not in KNOWN), None)
    if unknown is not None:
        close = get_close_matches(unknown, KNOWN, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(KNOWN))}"
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
    return Line(
        number=number,
        id=own_id,
        prompt=prompt if asked.raw else None,
        messages=None if asked.raw else _messages(given, asked),
        tools=given.get("tools"),
        options=_options(given, asked, place),
    )


def _object(text: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidRequestError(f"not JSON ({fault})") from fault
    if not isinstance(entry, dict):
        raise InvalidRequestError(f"a JSON object is needed, not {type(entry).__name__}")
    return entry


def _messages(given: Mapping[str, Any], asked: Asked) -> list[dict[str, Any]]:
    messages = given.get("messages", [{"role": "user", "content": given.get("prompt")}])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequestError('"messages" is a list of {"role": ..., "content": ...}')
    system = given.get("system", asked.system)
    if system is not None and not isinstance(system, str):
        raise InvalidRequestError(f'"system" is a text, not {system!r:.60}')
    if system and not any(message.get("role") == "system" for message in messages):
        return [{"role": "system", "content": system}, *messages]
    return messages


def _options(given: Mapping[str, Any], asked: Asked, place: int) -> GenerationOptions:
    """The line's own over those of the command; a seed given there counts up, so that equal prompts differ."""
    drawn = {name: given[name] for name in DRAWING if name in given}
    if isinstance(drawn.get("stop"), str | list):
        stop = drawn["stop"]
        drawn["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "seed" not in drawn:
        drawn["seed"] = (asked.seed + place) % (1 << 64)
    if "schema" in given or "regex" in given:
        drawn["grammar"] = grammar_of(given.get("schema"), given.get("regex"))
    sampled: dict[str, Any] = {
        name: tuple(v) if isinstance(v := given[name], list) else v for name in SAMPLING if name in given
    }
    sampling = replace(asked.options.sampling, **sampled)
    return replace(asked.options, sampling=sampling, top_k=0, **drawn).check()
