"""`Grammar`: a restriction of an answer, as a value that crosses the pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from runtime.errors import GrammarError

GrammarKind = Literal["json_schema", "regex", "lark"]
# Characters of a source: llguidance's time grows with the square of a regex or rule, more slowly for a schema.
MAX_CHARACTERS = {"json_schema": 1 << 17, "regex": 1 << 13, "lark": 1 << 14}
TOO_DEEP: Final = "nested too deeply to be read: move its inner parts into $defs, and write a $ref in their place"
_LABELS = {"json_schema": "JSON schema", "regex": "regex", "lark": "Lark grammar"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A restriction of an answer. Make one with `json_schema`, `regex` or `lark`; give it to `GenerationOptions.grammar`.

    It holds only the source, and can be compared, saved and sent. The language is llguidance's
    (https://github.com/guidance-ai/llguidance): JSON schema, Rust regular expressions, and its own dialect of Lark.
    """

    kind: GrammarKind
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str | type) -> Self:
        """Answers are JSON texts that the schema describes.

        At most one line break and 32 spaces separate its parts (a small model would fill pages with them). The schema can set
        other white space: ``"x-guidance": {"whitespace_flexible": False}`` for none, or a ``whitespace_pattern``.

        A grammar compares characters, not names and numbers. So a finished answer is also parsed. It is marked incomplete if an
        object has a name twice (as two free names for ``minProperties`` may be), if a number exceeds the range of a float, or
        if it no longer fits the schema once escaped names and long fractions are parsed.

        Args:
            schema: A dictionary, its JSON text, or a pydantic class.

        Raises:
            GrammarError: None of these, or not JSON.
        """
        made: object = schema
        if isinstance(schema, type):
            made = _schema_of(schema)
        elif isinstance(schema, str):
            made = read_json(schema)
        if not isinstance(made, Mapping):
            raise GrammarError(f"a JSON schema is a dictionary, its JSON text or a pydantic class, not {schema!r:.80}")
        if isinstance(schema, str):
            return cls("json_schema", schema).check_source()
        _check_size(made)
        try:
            text = json.dumps(dict(made), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as fault:
            raise GrammarError(f"the JSON schema holds what JSON cannot: {fault}") from fault
        return cls("json_schema", text).check_source()

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Answers match the whole pattern, in the syntax of Rust's regex crate: no look-around, no back-references.

        Raises:
            GrammarError: Not a text.
        """
        return cls("regex", pattern).check_source()

    @classmethod
    def lark(cls, source: str) -> Self:
        """Answers are sentences of a Lark grammar whose first rule is ``start``.

        Raises:
            GrammarError: Not a text.
        """
        return cls("lark", source).check_source()

    def check(self) -> Self:
        """Returns itself if llguidance can compile it. Needs no model, takes 0.2 s the first time. Blocks; any thread.

        Raises:
            GrammarError: llguidance cannot read it, it allows nothing, or takes too long; with llguidance's own message.
        """
        from runtime.grammar.trial import check_grammars  # it imports this module

        fault = check_grammars([self])[self]
        if fault is not None:
            raise fault
        return self

    def check_source(self) -> Self:
        """Returns itself if its source is a text of valid characters within the limit of length; checks nothing else.

        Raises:
            GrammarError: It is not.
        """
        if not isinstance(self.source, str):
            raise GrammarError(f"a grammar's source is a text, not {self.source!r:.80}")
        most = MAX_CHARACTERS.get(self.kind, 0)
        if len(self.source) > most:
            raise GrammarError(f"the {self.label} has {len(self.source):,} characters; at most {most:,} are read: shorten it")
        try:
            self.source.encode()
        except UnicodeEncodeError as fault:
            where = f"half of a character (a lone surrogate) at position {fault.start:,}"
            raise GrammarError(f"the {self.label} holds {where}; remove it") from fault
        return self

    @property
    def label(self) -> str:
        """The kind, in words."""
        return _LABELS.get(self.kind, str(self.kind))


def _check_size(schema: Mapping[Any, Any]) -> None:
    """Counts the characters of the JSON text without writing it: a shared part is written once for each use.

    Raises:
        GrammarError: It is too large, or contains itself.
    """
    most = MAX_CHARACTERS["json_schema"]
    written: dict[int, int] = {}  # lower bound of the characters of a part, by identity
    inside: set[int] = set()

    def least(part: object) -> int:
        if isinstance(part, str):
            return len(part) + 2
        if not isinstance(part, Mapping | list | tuple):
            return 1
        if id(part) in inside:
            raise GrammarError("the JSON schema holds itself; write the repeated part as a $ref")
        if id(part) not in written:
            inside.add(id(part))
            if isinstance(part, Mapping):
                size = 2 + sum(len(str(key)) + 4 + least(value) for key, value in part.items())
            else:
                size = 2 + sum(map(least, part))
            inside.discard(id(part))
            written[id(part)] = size
        return written[id(part)]

    try:
        size = least(schema)
    except RecursionError as fault:
        raise GrammarError(f"the JSON schema is {TOO_DEEP}") from fault
    if size > most:
        raise GrammarError(
            f"the JSON schema has at least {size:,} characters written out; at most {most:,} are read: shorten it, or write "
            "parts that come again as a $ref"
        )


def _schema_of(given: type) -> object:
    """The schema of a pydantic class."""
    describe = getattr(given, "model_json_schema", None)
    if describe is None:
        raise GrammarError(f"{given.__name__} is no pydantic class: it has no model_json_schema()")
    try:
        return describe()
    except Exception as fault:
        raise GrammarError(f"{given.__name__} cannot be told as a JSON schema: {fault}") from fault


def read_json(text: str) -> object:
    """The value of a schema's text.

    Raises:
        GrammarError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except ValueError as fault:
        raise GrammarError(f"the JSON schema is not JSON: {fault}") from fault
    except RecursionError as fault:
        raise GrammarError(f"the JSON schema is {TOO_DEEP}") from fault


# At most one line break and 32 spaces between the parts of a JSON text: a small model would fill pages with them.
JSON_DEFAULTS: Final[dict[str, Any]] = {"whitespace_pattern": r"(\n {0,32}| {1,32})"}


def json_defaults(source: str) -> dict[str, Any]:
    """The white space of JSON texts, unless the schema's own ``x-guidance`` sets it.

    Raises:
        GrammarError: The schema is not a JSON object, or nested too deeply.
    """
    schema = read_json(source)
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema is an object, not {source!r:.80}")
    own = schema.get("x-guidance")
    return {} if isinstance(own, dict) and "whitespace_flexible" in own else JSON_DEFAULTS


def readable(message: str) -> str:
    """A message of llguidance without its markers, at most 2,000 characters; a recursion limit becomes advice (`TOO_DEEP`)."""
    text = message.replace("<non-verbose/>", "").strip()
    if text.startswith("recursion limit exceeded at line"):  # its JSON reader, at about 125 levels
        return f"it is {TOO_DEEP}"
    return text if len(text) <= 2000 else f"{text[:2000]} ..."
