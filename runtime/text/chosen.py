"""Which chat template holds: the model's own, a named format, the user's, or none; and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resources.files import read_regular
from runtime.errors import InvalidRequestError
from runtime.loading.digests import template_digest
from runtime.options import LoadOptions
from runtime.text.formats import CHAT_FORMATS, NamedFormat
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer

MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ChosenFormat:
    """The format in force.

    Attributes:
        name: "model" (its own template), "none" (text is continued, there are no roles), "custom" (the user's template),
            or a name of `CHAT_FORMATS`.
        template: None where there are no roles.
        eos_token_ids: What ends an answer: the model's own, and the token that ends a turn of the format.
        stops: Texts that end an answer, where no token does.
        replaces: Whether it is another than the model came with.
        warnings: What the user should know, for `ModelInfo.warnings`.
    """

    name: str
    template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    stops: tuple[str, ...] = ()
    replaces: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """SHA-256 hex of the template's text."""
        return None if self.template is None else template_digest(self.template.source)


def choose_format(options: LoadOptions, tokenizer: Tokenizer, own: ChatTemplate | None) -> ChosenFormat:
    """The format that the options ask for.

    Args:
        options: `chat_format`, `chat_template`, `chat_template_file` and `add_bos` are read.
        tokenizer: The model's.
        own: The template the model came with.

    Raises:
        InvalidRequestError: The user's template cannot be read or does not compile.
    """
    eos = tokenizer.eos_token_ids
    source = _custom_source(options)
    if source is not None:
        template = ChatTemplate(source, tokenizer.special_texts)
        template.check()
        return ChosenFormat("custom", template, eos, replaces=own is None or own.source != source)
    if options.chat_format == "none":
        return ChosenFormat("none", None, eos, replaces=own is not None)
    if options.chat_format != "auto":
        return _named(options, tokenizer)
    return ChosenFormat("none" if own is None else "model", own, eos)


def wants_bos(options: LoadOptions, tokenizer: Tokenizer) -> bool:
    """Whether a text begins with the beginning-of-text token."""
    wanted = {"model": tokenizer.adds_bos, "yes": True, "no": False}[options.add_bos]
    return wanted and tokenizer.bos_token_id is not None


def _named(options: LoadOptions, tokenizer: Tokenizer) -> ChosenFormat:
    form = CHAT_FORMATS[options.chat_format]
    bos = tokenizer.special_texts.get("bos_token", "") if wants_bos(options, tokenizer) else ""
    eos = tokenizer.eos_token_ids
    eos_text = tokenizer.decode(eos[:1])
    template = ChatTemplate(form.source, {"bos_token": bos, "eos_token": eos_text})
    stops = form.stops
    if form.end is not None:
        end = tokenizer.added.get(form.end)
        eos, stops = (eos, (form.end, *stops)) if end is None else ((*eos, *({end} - set(eos))), stops)
    warnings = _warnings(options.chat_format, form, tokenizer)
    return ChosenFormat(options.chat_format, template, eos, stops, replaces=True, warnings=warnings)


def _warnings(name: str, form: NamedFormat, tokenizer: Tokenizer) -> tuple[str, ...]:
    found: list[str] = []
    missing = [mark for mark in form.marks if mark not in tokenizer.added]
    if missing:
        found.append(
            f"chat_format={name!r}: the vocabulary has no {' and no '.join(missing)}, so they are written as plain text; the "
            "model has never seen them as tokens, and a message that spells them cannot be told from the format's own"
        )
    if "eos_token" in form.source and not tokenizer.eos_token_ids:
        found.append(f"chat_format={name!r}: the model has no end-of-text token, so nothing marks the end of an earlier answer")
    return tuple(found)


def _custom_source(options: LoadOptions) -> str | None:
    """The user's template; None where there is none.

    Raises:
        InvalidRequestError: The file is missing, too large, or no text.
    """
    if options.chat_template_file is None:
        return options.chat_template
    path = Path(options.chat_template_file)
    try:
        return read_regular(path, MAX_TEMPLATE_BYTES).decode()
    except OSError as fault:
        raise InvalidRequestError(f"{path}: the chat template cannot be read ({fault.strerror})") from fault
    except UnicodeDecodeError as fault:
        raise InvalidRequestError(f"{path}: not UTF-8 at byte {fault.start:,}; a chat template is a text") from fault
