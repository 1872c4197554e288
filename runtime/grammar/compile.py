"""Translation of grammars into llguidance's own form, and the limits of compilation."""

from __future__ import annotations

from typing import Any, Final

from runtime.errors import GrammarError
from runtime.grammar.source import TOO_DEEP, Grammar, read_json

CHILD_STACK: Final = 64 << 20  # rules that refer to rules are compiled recursively
OUR_STACK: Final = 2 * CHILD_STACK  # more than in the child, where every grammar is compiled first
LIMITS: Final[dict[str, Any]] = {
    "verbose_errors": False,  # no dump of the parser in errors that are shown
    "precompute_large_lexemes": False,  # lazily, within each step's limit: compilation must not depend on the vocabulary
}
# At most one line break and 32 spaces between the parts of a JSON text: a small model would fill pages with them.
JSON_DEFAULTS: Final[dict[str, Any]] = {"whitespace_pattern": r"(\n {0,32}| {1,32})"}


def llguidance_text(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher

    options = {"defaults": json_defaults(grammar.source)} if grammar.kind == "json_schema" else {}
    text: str = getattr(LLMatcher, f"grammar_from_{grammar.kind}")(grammar.source, **options)
    return text


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
