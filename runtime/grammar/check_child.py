"""The process in which a grammar is tried out: run by its path, imports llguidance and the standard library, nothing of ours.

A grammar of forty characters can keep llguidance busy for minutes, and one that refers to itself deeply enough ends the
process that reads it. So every grammar is compiled here first, where it can be killed. Standard input: JSON. Standard
output: ``{"error": null | text}``.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from typing import Any

import llguidance

EOS = 256


class _Bytes:
    """A vocabulary of the 256 bytes and an eos: a grammar's own faults show with any."""

    eos_token_id = EOS
    bos_token_id = None
    special_token_ids = (EOS,)

    def __init__(self) -> None:
        self.tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault(kind: str, source: str, limits: dict[str, Any]) -> str | None:
    """What is wrong with the grammar, in llguidance's words; None: nothing."""
    try:
        text = getattr(llguidance.LLMatcher, f"grammar_from_{kind}")(source, **_json_options(kind))
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


def _json_options(kind: str) -> dict[str, Any]:
    return {"defaults": REQUEST["json_defaults"]} if kind == "json_schema" else {}


def main() -> None:
    """One grammar, on a thread whose stack is known."""
    seconds = REQUEST["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (REQUEST["memory_bytes"],) * 2)
    threading.stack_size(REQUEST["stack_bytes"])
    answer: dict[str, str | None] = {}

    def work() -> None:
        answer["error"] = fault(REQUEST["kind"], REQUEST["source"], REQUEST["limits"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    REQUEST: dict[str, Any] = json.load(sys.stdin)
    main()
