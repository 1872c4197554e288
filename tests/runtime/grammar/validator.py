"""A JSON schema validator by hand for the keywords that the tests use, independent of our code and of llguidance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}
# Takes the value and the keyword's argument; each passes for values of a type to which the keyword does not apply.
SIMPLE: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda v, bound: v >= bound),
    "maximum": ("number", lambda v, bound: v <= bound),
    "exclusiveMinimum": ("number", lambda v, bound: v > bound),
    "exclusiveMaximum": ("number", lambda v, bound: v < bound),
    "minLength": ("string", lambda v, n: len(v) >= n),
    "maxLength": ("string", lambda v, n: len(v) <= n),
    "pattern": ("string", lambda v, pattern: re.search(pattern, v) is not None),
    "minItems": ("array", lambda v, n: len(v) >= n),
    "maxItems": ("array", lambda v, n: len(v) <= n),
    "minProperties": ("object", lambda v, n: len(v) >= n),
    "maxProperties": ("object", lambda v, n: len(v) <= n),
    "required": ("object", lambda v, names: set(names) <= set(v)),
}
NO_OWN_RULE = {"$defs", "x-guidance", "patternProperties", "additionalProperties"}  # read with `properties`, or not needed


def holds(text: str, schema: Schema) -> bool:
    """Whether a text is JSON that parses without loss and matches the schema."""
    try:
        value = json.loads(text, object_pairs_hook=_each_once)
    except ValueError:
        return False
    return _finite(value) and valid(value, schema, schema)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def valid(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether the value matches the schema, which is a part of `root`."""
    return all(_keyword(value, name, wanted, schema, root) for name, wanted in schema.items())


def _keyword(value: Any, name: str, wanted: Any, schema: Schema, root: Schema) -> bool:
    if name in SIMPLE:
        kind, rule = SIMPLE[name]
        return not TYPES[kind](value) or rule(value, wanted)
    match name:
        case "type":
            return any(TYPES[kind](value) for kind in ([wanted] if isinstance(wanted, str) else wanted))
        case "enum":
            return any(_same(value, one) for one in wanted)
        case "const":
            return _same(value, wanted)
        case "anyOf":
            return any(valid(value, one, root) for one in wanted)
        case "$ref":
            return valid(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "items":
            return not isinstance(value, list) or all(valid(one, wanted, root) for one in value)
        case "properties":
            return not isinstance(value, dict) or all(_member(n, v, schema, root) for n, v in value.items())
    assert name in NO_OWN_RULE, f"no rule for {name}"
    return "properties" in schema or not isinstance(value, dict) or all(_member(n, v, schema, root) for n, v in value.items())


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _member(name: str, value: Any, schema: Schema, root: Schema) -> bool:
    own = [schema.get("properties", {})[name]] if name in schema.get("properties", {}) else []
    own += [one for pattern, one in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
    rest = schema.get("additionalProperties", True)
    if own:
        return all(valid(value, one, root) for one in own)
    return rest if isinstance(rest, bool) else valid(value, rest, root)
