"""The process in which grammars are tried: run by its path, imports only llguidance and the standard library.

A grammar of forty characters can keep llguidance busy for minutes, and one that refers to itself deeply enough crashes the
process that reads it. So every grammar is compiled first in this process, which can be killed. Standard input: JSON. Standard
output: a line ``{"error": null | text}`` for each grammar, in order, as soon as it is known.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
import threading
import time
from typing import Any

import llguidance

EOS = 256


class _Bytes:
    """A vocabulary of the 256 bytes and an eos: faults of a grammar do not depend on the vocabulary."""

    eos_token_id = EOS
    bos_token_id = None
    special_token_ids = (EOS,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault(kind: str, source: str, json_defaults: dict[str, Any], limits: dict[str, Any]) -> str | None:
    """What is wrong with the grammar, in llguidance's words; None: nothing."""
    options = {"defaults": json_defaults} if kind == "json_schema" else {}
    try:
        text = getattr(llguidance.LLMatcher, f"grammar_from_{kind}")(source, **options)
    except ValueError as error:
        return str(error)
    bounds = llguidance.LLParserLimits(**limits)
    refused, messages = llguidance.LLMatcher.validate_grammar_with_warnings(text, limits=bounds)
    if refused:
        return str(messages[0])
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), eos_token=EOS)
    matcher = llguidance.LLMatcher(tokenizer, text, limits=bounds)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        reason: str = matcher.get_error()
        return "it allows nothing, not even an empty text" if reason.startswith("NoExtension") else reason
    return None


def bound(what: int, most: int) -> None:
    """Sets a soft limit, unless a stricter hard one was inherited; a later call may raise it."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(request: dict[str, Any]) -> None:
    """Tries all grammars on a thread with the given stack size; each has the same processor time."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)  # whatever handler was inherited
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bound(resource.RLIMIT_AS, request["memory_bytes"])
    threading.stack_size(request["stack_bytes"])

    def work() -> None:
        for grammar in request["grammars"]:
            bound(resource.RLIMIT_CPU, math.ceil(time.process_time()) + request["cpu_seconds"])
            answer = {"error": fault(**grammar, limits=request["limits"])}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(json.load(sys.stdin))
