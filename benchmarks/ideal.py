"""How many tokens a workload needs at the very least.

A *context* is a sequence of tokens whose next-token distribution somebody asked for; a generation of n tokens after a
prompt asks for n of them, the longest being the prompt and all generated tokens but the last. To know what follows a
context, the model must have seen each of its tokens behind exactly the tokens before it. A perfect cache, granular to
the token, unlimited, and remembering distributions as well as keys and values, computes each such token once:

    ideal = the number of distinct non-empty prefixes of all contexts asked for.

Nobody who answers exactly can push fewer tokens through the model, whatever the order of the requests and however they
are batched. Padding, tokens computed twice, and tokens computed ahead that nobody asked about make the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def distinct_prefixes(contexts: Iterable[Sequence[int]]) -> int:
    """The number of different non-empty prefixes, exactly.

    In sorted order a context shares its longest known prefix with the one just before it; the rest is new.
    """
    count = 0
    before: list[int] = []
    for context in sorted(list(context) for context in contexts):
        count += len(context) - common_prefix(before, context)
        before = context
    return count


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
