"""An independent check of what a grammar allows: llguidance itself over single bytes, without our tables or masks."""

from __future__ import annotations

import functools
from typing import Any

import llguidance

from runtime.grammar.source import Grammar

EOS = 256
MAKERS = {
    "json_schema": llguidance.LLMatcher.grammar_from_json_schema,
    "regex": llguidance.LLMatcher.grammar_from_regex,
    "lark": llguidance.LLMatcher.grammar_from_lark,
}


class _Bytes:
    eos_token_id = EOS
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>")
    special_token_ids = (EOS,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def judge(grammar: Grammar) -> Any:
    """A fresh matcher, with llguidance's own defaults."""
    return _first(grammar).deep_copy()


@functools.cache
def _first(grammar: Grammar) -> Any:
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), eos_token=EOS)
    matcher = llguidance.LLMatcher(tokenizer, MAKERS[grammar.kind](grammar.source))
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(grammar: Grammar, answer: str | bytes) -> bool:
    """Whether the answer is complete under the grammar."""
    data = answer.encode() if isinstance(answer, str) else answer
    matcher = judge(grammar)
    return matcher.try_consume_tokens(list(data)) == len(data) and bool(matcher.is_accepting())


def begins(grammar: Grammar, answer: str | bytes) -> bool:
    """Whether some complete answer begins with these bytes."""
    data = answer.encode() if isinstance(answer, str) else answer
    return bool(judge(grammar).validate_tokens(list(data)) == len(data))
