"""What the values of the options of `elsewise ask` mean, one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import click

from app.cli.common import read_text
from app.cli.spelling import ELSEWHERE, LOADING, in_options
from runtime import CHAT_FORMATS, OPTION_NAMES, Grammar, InvalidRequestError, LoadOptions, OptionError, RuntimeFault

WEIGHTS: Final = ("float32", "float16", "bfloat16", "int8", "int4")
WEIGHTS_HELP: Final = (
    "Hold linear weights in fewer bits: faster on a processor (hf), and the numbers are others; what that costs is said. With "
    "bfloat16, int8 and int4 a seed can give another answer in a batch or after a branch. Example: --weights float16"
)
MAX_GRAMMAR_BYTES: Final = 8 << 20
TEMPLATES = ("auto", "none", *CHAT_FORMATS)


def grammar_of(schema: Any, regex: Any, lark: Any) -> Grammar | None:
    """What an answer must look like; None where nothing is said.

    Args:
        schema: A JSON schema, as JSON text or as an object.
        regex: A regular expression.
        lark: A Lark grammar's text.

    Raises:
        InvalidRequestError: More than one is given.
        GrammarError: llguidance does not take it; its own message says why.
    """
    forms = {"a schema": schema, "a regex": regex, "a Lark grammar": lark}
    given = [name for name, form in forms.items() if form is not None]
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} contradict each other: give one of them")
    if schema is not None:
        return Grammar.json_schema(schema).check()
    if lark is not None:
        return Grammar.lark(lark).check()
    return None if regex is None else Grammar.regex(regex).check()


def lark_of(given: str | None) -> str | None:
    """The grammar's text itself (it has rules, so it has colons), or a file's.

    Raises:
        click.ClickException: The file cannot be read.
    """
    return given if given is None or (":" in given and not _is_path(given)) else read_text(given, MAX_GRAMMAR_BYTES)


def schema_of(given: str | None) -> str | None:
    """The JSON text itself, or a file's.

    Raises:
        click.ClickException: The file cannot be read.
    """
    return given if given is None or given.lstrip().startswith(("{", "[")) else read_text(given, MAX_GRAMMAR_BYTES)


def _is_path(given: str) -> bool:
    """Whether something has that name; a grammar is longer than any name."""
    try:
        return Path(given).exists()
    except (OSError, ValueError):
        return False


def format_of(given: str | None) -> dict[str, Any]:
    """Load options for a format's name or a template's file."""
    if given is None:
        return {}
    if given in TEMPLATES:
        return {"chat_format": given}
    if Path(given).is_file():
        return {"chat_template_file": given}
    raise click.UsageError(f"--format {given}: neither one of {', '.join(TEMPLATES)} nor a file")


def offload_of(given: str | None) -> dict[str, Any]:
    """The load option for weights on disk, where they are asked for."""
    return {} if given in (None, "none") else {"offload": given}


def weights_of(given: str | None) -> dict[str, Any]:
    """The load option for weights in fewer bits, where they are asked for."""
    return {} if given in (None, "float32") else {"weights": given}


def load_options(flag: str, given: tuple[str, ...]) -> dict[str, Any]:
    """How a model is loaded, by the names of `LoadOptions`.

    Args:
        flag: What it was said with.
        given: Each as NAME=VALUE: JSON, or else a text.

    Raises:
        click.UsageError: Not written so, given twice, an unknown name, or a value out of range.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise click.UsageError(f"{flag} {text}: write NAME=VALUE, such as kv_dtype=q8")
        if name in found:
            raise click.UsageError(f"{flag} {name} is given twice")
        found[name] = _json_or_text(value)
    try:
        LoadOptions.from_mapping(found)
    except OptionError as fault:
        raise click.UsageError(in_options(OptionError(fault.words, f"{flag} {fault.option}", fault.value))) from fault
    except RuntimeFault as fault:
        raise click.UsageError(f"{flag}: {in_options(fault)}") from fault
    return found


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def named_options(given: tuple[str, ...], said: Collection[str]) -> dict[str, Any]:
    """The options given by name: JSON, or else a text.

    Raises:
        click.UsageError: Not written as NAME=VALUE, given twice, or one that has a flag of its own.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.UsageError(f"--option {text}: write NAME=VALUE, such as typical_p=0.9")
        if name in ELSEWHERE:
            raise click.UsageError(f"--option {name}: use {ELSEWHERE[name]}")
        if name in LOADING - OPTION_NAMES:
            raise click.UsageError(f"--option {name}: use --load {name}={value}, for it is decided when a model is loaded")
        if name in found or name in said:
            raise click.UsageError(f"--option {name} is given twice")
        found[name] = _json_or_text(value)
    return found


def naming_tokens(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that name tokens by what they say: only a model knows their ids."""
    found: dict[str, Any] = {}
    banned, biases = options.get("banned_tokens"), options.get("logit_bias")
    banned = [banned] if isinstance(banned, str) else banned
    if isinstance(banned, list) and any(isinstance(token, str) for token in banned):
        found["banned_tokens"] = banned
    if isinstance(biases, dict) and not all(key.removeprefix("-").isdecimal() for key in biases):
        found["logit_bias"] = biases
    return found


def with_token_ids(options: Mapping[str, Any], tokens: list[bytes]) -> dict[str, Any]:
    """The same with ids, as the window does it.

    Args:
        options: Those that name tokens by what they say.
        tokens: The model's, by id.

    Raises:
        InvalidRequestError: A text that is no token of the model; the one that it begins with is named.
    """
    from app.workbench.setup.token_names import with_ids  # which brings the window's side along
    from app.workbench.vocabulary import TokenBytes
    from ui import Refusal

    try:
        return {name: with_ids(name, value, TokenBytes(tokens)) for name, value in options.items()}
    except Refusal as refusal:
        raise InvalidRequestError(str(refusal)) from refusal


def adapter_options(given: tuple[str, ...]) -> dict[str, Any]:
    """Load options for adapters: a number after the last colon is a scale."""
    found: list[tuple[str, float]] = []
    for text in given:
        path, colon, end = text.rpartition(":")
        try:
            scale = float(end)
        except ValueError:
            if colon and path.strip() and "/" not in end and not Path(text).exists():
                raise click.ClickException(f"--adapter {text}: {end!r} is no scale: write a number, {path}:0.8") from None
            path, scale = text, 1.0
        if not colon:
            path, scale = text, 1.0
        if not path.strip():
            raise click.UsageError(
                f"--adapter {text}: write the adapter's folder or name, and a scale after a colon: ./pirate:0.8"
            )
        if not math.isfinite(scale):
            raise click.UsageError(f"--adapter {text}: the scale is a finite number (1 is as trained)")
        found.append((path, scale))
    return {"adapters": tuple(found)} if found else {}
