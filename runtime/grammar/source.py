"""`Grammar`: what an answer must look like, as a value that crosses the pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from runtime.errors import GrammarError

GrammarKind = Literal["json_schema", "regex", "lark"]
# Characters of a source: llguidance takes time that grows with the square of a regex or a rule, less so of a schema.
MAX_CHARACTERS = {"json_schema": 1 << 17, "regex": 1 << 13, "lark": 1 << 14}
TOO_DEEP: Final = "nested too deeply to be read: move its inner parts into $defs, and write a $ref in their place"
_LABELS = {"json_schema": "JSON schema", "regex": "regex", "lark": "Lark grammar"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like. Make one with `json_schema`, `regex` or `lark`; give it to `GenerationOptions.grammar`.

    Nothing but the source is held, so it can be compared, saved and sent; the language is llguidance's
    (https://github.com/guidance-ai/llguidance): JSON schema, Rust regular expressions, and its own dialect of Lark.
    """

    kind: GrammarKind
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str | type) -> Self:
        """Answers are JSON texts that the schema describes.

        Between its parts stand at most one line break and 32 spaces (a small model would fill pages with them);
        the schema can say otherwise: ``"x-guidance": {"whitespace_flexible": False}`` for none, or a ``whitespace_pattern``.

        A grammar compares no names and reads no numbers. So an answer that ends is read once: one that has a name twice in an
        object (as two free names that make up ``minProperties`` may be), a number beyond a float's, or that the schema
        describes no longer once its escaped names and its longest fractions are read, is marked incomplete.

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
        """Itself, when llguidance can read and compile it. Takes no model, and 0.2 s the first time. Blocks; any thread.

        Raises:
            GrammarError: It cannot; its own message says why.
        """
        from runtime.grammar.trial import check_grammar  # it imports this module

        check_grammar(self)
        return self

    def check_source(self) -> Self:
        """Itself, when its source is a text that can be sent and is not too long. Looks at nothing else.

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
        """What kind it is, in words."""
        return _LABELS.get(self.kind, str(self.kind))


def _check_size(schema: Mapping[Any, Any]) -> None:
    """Refuses by counting what cannot be written within the limit: parts that are shared are written once for each use.

    Raises:
        GrammarError: It is too large, or holds itself.
    """
    most = MAX_CHARACTERS["json_schema"]
    written: dict[int, int] = {}  # characters that a part takes at least, by identity
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
    """The schema that a pydantic class gives of itself."""
    describe = getattr(given, "model_json_schema", None)
    if describe is None:
        raise GrammarError(f"{given.__name__} is no pydantic class: it has no model_json_schema()")
    try:
        return describe()
    except Exception as fault:
        raise GrammarError(f"{given.__name__} cannot be told as a JSON schema: {fault}") from fault


def read_json(text: str) -> object:
    """A schema's text as Python has it.

    Raises:
        GrammarError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except ValueError as fault:
        raise GrammarError(f"the JSON schema is not JSON: {fault}") from fault
    except RecursionError as fault:
        raise GrammarError(f"the JSON schema is {TOO_DEEP}") from fault
