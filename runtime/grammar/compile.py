"""Whether a grammar can be used at all, found out in a process that can be killed, and its form for llguidance."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, get_args

from runtime.errors import GrammarError
from runtime.grammar.source import Grammar, GrammarKind

CPU_SECONDS: Final = 5  # for one grammar to be compiled
MEMORY_BYTES: Final = 2 << 30
CHILD_STACK: Final = 64 << 20  # rules that refer to rules are compiled recursively
OUR_STACK: Final = 2 * CHILD_STACK  # what went well there goes well here
_WALL_SECONDS = 60.0  # on a machine that is busy
_CHILD = Path(__file__).with_name("check_child.py")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")  # of the environment
LIMITS: Final[dict[str, Any]] = {
    "verbose_errors": False,  # errors are shown to people: no dump of the parser
    "precompute_large_lexemes": False,  # lazily, within each step's limit: a compilation must not depend on the vocabulary
}
# At most one line break and 32 spaces between the parts of a JSON text: a small model would fill pages with them.
JSON_DEFAULTS: Final[dict[str, Any]] = {"whitespace_pattern": r"(\n {0,32}| {1,32})"}


def check_grammar(grammar: Grammar) -> None:
    """Refuses what llguidance cannot read, what allows nothing, and what takes too long. Blocks; any thread.

    Raises:
        GrammarError: With llguidance's own message.
    """
    if grammar.kind not in get_args(GrammarKind):
        raise GrammarError(f"a grammar is one of {', '.join(get_args(GrammarKind))}, not {grammar.kind!r:.80}")
    grammar.check_source()
    reason = _refusal(grammar)
    if reason is not None:
        raise GrammarError(f"the {grammar.label} cannot be used: {reason}")


def llguidance_text(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher

    if grammar.kind == "json_schema":
        text: str = LLMatcher.grammar_from_json_schema(grammar.source, defaults=json_defaults(grammar.source))
    elif grammar.kind == "regex":
        text = LLMatcher.grammar_from_regex(grammar.source)
    else:
        text = LLMatcher.grammar_from_lark(grammar.source)
    return text


def json_defaults(source: str) -> dict[str, Any]:
    """What holds for blanks in JSON where the schema's own ``x-guidance`` says nothing of them.

    Raises:
        GrammarError: The schema is no JSON object.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as fault:
        raise GrammarError(f"the JSON schema is not JSON: {fault}") from fault
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema is an object, not {source!r:.80}")
    own = schema.get("x-guidance")
    return {} if isinstance(own, dict) and "whitespace_flexible" in own else JSON_DEFAULTS


@functools.lru_cache(maxsize=256)
def _refusal(grammar: Grammar) -> str | None:
    """What is wrong with it; None: nothing."""
    request = {
        "kind": grammar.kind,
        "source": grammar.source,
        "limits": LIMITS,
        "json_defaults": json_defaults(grammar.source) if grammar.kind == "json_schema" else {},
        "cpu_seconds": CPU_SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "stack_bytes": CHILD_STACK,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_CHILD)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
    except subprocess.TimeoutExpired:
        return f"compiling it took longer than {_WALL_SECONDS:g} s; make it smaller"
    except OSError as fault:
        raise GrammarError(f"no process could be started to check the {grammar.label}: {fault}") from fault
    if done.returncode == 0:
        error: str | None = json.loads(done.stdout)["error"]
        return None if error is None else readable(error)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        way_out = "make it smaller (what grows is a large multipleOf, repetition or allOf)"
        return f"compiling it took more than {CPU_SECONDS} s of computing; {way_out}"
    if done.returncode == -signal.SIGSEGV:
        return "its rules are nested too deeply to be compiled; nest them less"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"compiling it failed (exit code {done.returncode}), maybe for want of memory: {''.join(last)[:300]}"


def readable(message: str) -> str:
    """A message of llguidance without what it says of its own verbosity, and not longer than a screen."""
    text = message.replace("<non-verbose/>", "").strip()
    return text if len(text) <= 2000 else f"{text[:2000]} ..."
