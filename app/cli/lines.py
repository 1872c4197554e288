"""The lines of `elsewise ask --batch`: read and checked, all of them, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from app.cli.asking import PRESET, Asked
from app.cli.common import read_text
from app.cli.spelling import ELSEWHERE, in_json
from app.cli.values import grammar_of, naming_tokens
from runtime import OPTION_NAMES, InvalidRequestError, RuntimeFault, resolve_options

FORMS = ("schema", "regex", "lark")
IGNORED = frozenset({"model", "stream", "stream_options", "user", "metadata", "store", "service_tier"})  # of OpenAI's bodies
ENVELOPE = frozenset({"custom_id", "method", "url", "body"})  # of a line of OpenAI's Batch API
CHATS = ("/v1/chat/completions", "/v1/completions")
OWN = frozenset({"id", "prompt", "messages", "system", "tools", *FORMS})
RECORDING = frozenset({"alternatives", "logprobs", "top_logprobs", "stages"})  # of which a result has nothing
KNOWN = OWN | OPTION_NAMES - RECORDING
_SHOWN = 5  # bad lines named at once


@dataclass(frozen=True, slots=True)
class Line:
    """One request.

    Attributes:
        number: Of the line, from 1.
        id: The line's own, or its number.
        custom: Whether it was given as `custom_id`, and is given back so too.
        messages: A conversation; or a single text in `prompt`.
        options: What it says of how it is answered, by the names of `GenerationOptions.from_mapping`; the seed is set.
        naming: More of them, that name tokens by what they say.
    """

    number: int
    id: str | int
    custom: bool  # the id came as OpenAI's `custom_id`
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    options: dict[str, Any]
    naming: dict[str, Any]


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
                faults.append(f"line {number}: {in_json(fault)}")
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
    entry = _unwrapped(_object(text))
    custom = "custom_id" in entry
    entry = {"id" if name == "custom_id" else name: value for name, value in entry.items()}
    unknown = next((name for name in entry if name not in KNOWN), None)
    if unknown is not None:
        close = get_close_matches(unknown, KNOWN, n=1)
        hint = f"use {ELSEWHERE[unknown]}" if unknown in ELSEWHERE else f"known: {', '.join(sorted(KNOWN))}"
        hint = f"did you mean {close[0]!r}?" if close and unknown not in ELSEWHERE else hint
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
    return Line(
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
    """What is asked in a line of OpenAI's Batch API, with its `custom_id`; any other line as it is."""
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


def _options(given: Mapping[str, Any], asked: Asked, place: int) -> dict[str, Any]:
    """The line's own; a seed given with the command counts up, so that equal prompts differ."""
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
