"""Random walks through the masks of schemas, without a model: exactly the sound answers parse and validate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.grammar.constraint import Constraint
from runtime.grammar.grammars import Grammars
from runtime.grammar.source import Grammar
from tests.runtime.grammar.test_constraint import vocabulary
from tests.runtime.grammar.validator import holds

MOST = 250  # tokens of a walk, at most
WALKS = 24
EOS = (0, 2)
FREE_NAMES = {"type": "object", "patternProperties": {"^[a-c]$": {"type": "integer"}}, "additionalProperties": False}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": -9, "maximum": 9}, "next": {"$ref": "#/$defs/end"}},
            "required": ["n", "next"],
            "additionalProperties": False,
        },
        "end": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "number": {"type": "number"},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2},
    "bounded": {"type": "number", "exclusiveMinimum": -1, "maximum": 2.5},
    "integer": {"type": "integer", "minimum": 3},
    "pattern": {"type": "string", "pattern": "^[a-d]{2,4}(-[0-9]+)?$"},
    "length": {"type": "string", "minLength": 2, "maxLength": 5},
    "enum": {"enum": ["rain", "süß", 1, 2.5, None, True, {"a": [1]}]},
    "ref": TREE,
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string", "maxLength": 3}}]},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "integer", "maximum": 0}, "maxItems": 2}},
    "two of three": {**FREE_NAMES, "minProperties": 2},
    "free": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    "beside": {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "null"}},
    "anything": {},
}
UNSOUND = {"numbers", "two of three", "free", "beside"}  # some walks here end unsound; a walk of "number" might


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(vocabulary)
    yield made
    made.close()


@pytest.fixture(scope="module")
def closing() -> set[int]:
    """Tokens of one closing or separating character, so that walks reach an end."""
    return {i for i, piece in enumerate(vocabulary().tokens) if piece in (b'"', b"}", b"]", b",", b":")} | {*EOS}


def walk(constraint: Constraint, seed: int, closing: set[int]) -> tuple[str, bool] | None:
    """The text of random allowed tokens and whether an eos ended it; None where the walk does not end in time."""
    rng, said = np.random.default_rng(seed), b""
    for _ in range(MOST):
        allowed = np.flatnonzero(constraint.allowed())
        ends = [token for token in allowed.tolist() if token in closing]
        token = int(rng.choice(ends if ends and rng.random() < 0.3 else allowed))
        constraint.advance([token])
        if token in EOS:
            return said.decode(), True
        said += vocabulary().tokens[token]
        if constraint.finished:
            return said.decode(), False
    return None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_finished_walk_is_sound_exactly_where_it_parses_and_validates(
    grammars: Grammars, closing: set[int], name: str
) -> None:
    # given a schema without optional whitespace, which would only lengthen the walks
    schema = {**SCHEMAS[name], "x-guidance": {"whitespace_flexible": False}}
    ended, unsound = 0, 0
    for seed in range(WALKS):
        # when a walk ends
        constraint = grammars.constraint(Grammar.json_schema(schema))
        said = walk(constraint, seed, closing)
        if said is None:
            continue
        # then an independent validator agrees
        text, by_eos = said
        sound = constraint.sound(int(by_eos))
        assert sound == holds(text, schema), text
        ended, unsound = ended + 1, unsound + (not sound)
    assert ended >= WALKS // 2, "or the test would say nothing"
    assert bool(unsound) == (name in UNSOUND) or name in ("number", "anything")
