"""Grammars with short answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from runtime.grammar.source import Grammar


class Parcel(BaseModel):
    """Enums, bounds and a nested array."""

    colour: Literal["red", "green", "dark blue"]
    weight: int = Field(ge=0, le=999)
    price: float | None = None
    sizes: list[Literal[1, 22, 333]] = Field(min_length=1, max_length=3)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Émile", "李"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "ccc"]}, "minItems": 1, "maxItems": 2},
        "inner": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "inner"],
    "additionalProperties": False,
}
JSON = Grammar.json_schema(SCHEMA)
REGEX = Grammar.regex(r"(19|20)\d\d-[01]\d-[0-3]\d( (am|pm))?")
LARK = Grammar.lark('start: term (("+" | "-") term)? ";"\nterm: NUMBER | "(" NUMBER ")"\nNUMBER: /[1-9][0-9]{0,2}/')
ALL = {"json": JSON, "regex": REGEX, "lark": LARK}
TIGHT = {"x-guidance": {"whitespace_flexible": False}}
# llguidance counts members, not distinct names: the only answer it allows here repeats a name
TWICE: dict[str, Any] = {
    "type": "object",
    "patternProperties": {"^a$": {"const": 1}},
    "additionalProperties": False,
    "minProperties": 2,
    "maxProperties": 2,
    **TIGHT,
}
