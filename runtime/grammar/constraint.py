"""`Constraint`: the state of one answer in its grammar, on one llguidance matcher.

A grammar compares characters; a program that parses a JSON answer gets names and numbers. So a finished JSON answer is also
checked in its parsed form.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np

from runtime.errors import GrammarError, SessionClosedError
from runtime.grammar.masks import Mask, MaskWorkers
from runtime.grammar.source import readable

_NO_EXTENSION = "NoExtension"  # start of llguidance's message where no token is allowed


class Constraint:
    """The state of one answer in its grammar. One caller at a time; every member raises `GrammarError` when it fails.

    `begin` starts the computation of the next token's mask on a worker; `allowed` waits for it.

    Args:
        matcher: An `llguidance.LLMatcher` of its own.
        tokenizer: The `llguidance.LLTokenizer` it was made with.
        width: Width of the logits; the tokenizer may know an eos beyond it.
        workers: Compute masks.
        is_json: Whether answers are JSON texts; see `sound`.
        tokens: Consumed by the matcher so far.

    Attributes:
        finished: Whether the answer is complete and nothing can follow it; known without a mask.
    """

    def __init__(
        self, matcher: Any, tokenizer: Any, width: int, workers: MaskWorkers, *, is_json: bool, tokens: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._width = width
        self._workers = workers
        self._is_json = is_json
        self._tokens = list(tokens)
        self._bits = np.empty((1, (tokenizer.vocab_size + 31) // 32), np.int32)
        self._mask: Mask | None = None
        self._pending: Future[Mask] | None = None
        self._asked = math.inf  # monotonic seconds: start of the wait for the mask
        self.finished = bool(matcher.is_stopped())
        self.work_seconds = self.wait_seconds = 0.0  # processor time of masks and steps; time that the answer waited for masks
        self._check()

    # ---- along the answer ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the computation of the next mask on a worker."""
        if self._pending is None and self._mask is None and not self.finished:
            with suppress(RuntimeError):  # the model was closed
                self._pending = self._workers.submit(self._compute)

    def allowed(self) -> Mask:
        """``(vocab,)`` bool: the tokens that may come next, at least one; with eos exactly if the answer may end. Read-only."""
        if self.finished:
            raise GrammarError(f"the answer is complete after {len(self._tokens):,} tokens: its grammar lets nothing follow")
        self.ready(None)
        if self._mask is None:
            self._mask = self._result()
        self._check()
        assert self._mask is not None  # set above
        return self._mask

    def ready(self, patience: float | None) -> bool:
        """Waits for the mask up to `patience` seconds (None: no limit); whether `allowed` returns at once. Never raises."""
        self.begin()
        if self._pending is None:
            return True
        self._asked = min(self._asked, time.monotonic())
        if not self._pending.done():
            self._workers.hurry(self._pending)
            if not wait([self._pending], patience).done:
                return False
        self.wait_seconds += time.monotonic() - self._asked
        self._asked = math.inf
        return True

    def advance(self, tokens: Sequence[int]) -> None:
        """Advances by the next tokens of the answer.

        Raises:
            GrammarError: Names the first token that is not allowed.
        """
        self._settle()
        began = time.thread_time()
        taken = self._matcher.try_consume_tokens(list(tokens))
        self.work_seconds += time.thread_time() - began
        self._tokens += tokens[:taken]
        self._check()
        if taken < len(tokens):
            place = len(self._tokens) + 1
            raise GrammarError(
                f"token id {tokens[taken]} cannot be token {place:,} of the answer: its grammar does not allow it"
            )
        self.finished = bool(self._matcher.is_stopped())

    def rollback(self, count: int) -> None:
        """Takes the last `count` tokens back; the next mask is not started."""
        if not 0 <= count <= len(self._tokens):
            raise GrammarError(f"{count} tokens cannot be taken back of {len(self._tokens):,}")
        self._settle()
        if count and not self._matcher.rollback(count):
            self._check()
            raise GrammarError(f"{count} tokens could not be taken back")
        del self._tokens[len(self._tokens) - count :]
        self.finished = bool(self._matcher.is_stopped())

    def fork(self) -> Constraint:
        """An independent copy in the same state."""
        self._settle(keep=True)
        copy = Constraint(
            self._matcher.deep_copy(), self._tokenizer, self._width, self._workers, is_json=self._is_json, tokens=self._tokens
        )
        copy._mask = self._mask
        return copy

    def could_end(self, back: int = 0, then: bytes = b"") -> bool:
        """Whether the answer may end, and is sound, with `then` in place of its last `back` tokens."""
        try:
            return self._may_end(back, then.decode()) and self.sound(back, then)
        except UnicodeDecodeError:
            return False

    def sound(self, back: int = 0, then: bytes = b"") -> bool:
        """Whether the answer, with `then` in place of its last `back` tokens, also fits the grammar in its parsed form.

        A JSON text with parsed names or numbers that differ from their spelling is checked on a copy of the matcher. Answers
        of other grammars are always sound.
        """
        if not self._is_json:
            return True
        began = time.thread_time()
        try:
            text = (self._tokenizer.decode_bytes(self._tokens[: len(self._tokens) - back]) + then).decode()
        except UnicodeDecodeError:
            return False
        read = as_read(text)
        sound = read is not None and (read == text or self._may_end(len(self._tokens), read))
        self.work_seconds += time.thread_time() - began
        return sound

    @property
    def stuck(self) -> bool:
        """Whether no token is allowed although the answer is incomplete; known once `allowed` has failed."""
        return bool(self._matcher.is_error()) and self._matcher.get_error().startswith(_NO_EXTENSION)

    def _may_end(self, back: int, then: str) -> bool:
        self._settle(keep=True)
        matcher = self._matcher.deep_copy()
        if back and not matcher.rollback(back):
            return False
        if then and not matcher.consume_tokens(self._tokenizer.greedy_tokenize(then)):
            return False
        return bool(matcher.is_accepting())

    # ---- on a worker -----------------------------------------------------------------------------------------------

    def _compute(self) -> Mask:
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        mask = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")[: self._width].view(np.bool_)
        self.work_seconds += time.thread_time() - began
        return mask

    # ---- between the two --------------------------------------------------------------------------------------------

    def _result(self) -> Mask:
        if self._pending is None:
            raise SessionClosedError("the model is closed; load it again")
        pending, self._pending = self._pending, None
        self._asked = math.inf
        try:
            return pending.result()
        except SessionClosedError:
            raise
        except Exception as fault:
            raise GrammarError(f"the grammar failed after {len(self._tokens):,} tokens: {fault}") from fault

    def _settle(self, *, keep: bool = False) -> None:
        """Waits until the matcher is free; drops the mask of the present state, unless `keep`."""
        if self._pending is not None:
            self._mask = self._result()
        if not keep:
            self._mask = None

    def _check(self) -> None:
        """Raises the matcher's error, if it has one; the message says when no token is allowed in an incomplete answer."""
        if not self._matcher.is_error():
            return
        reason = self._matcher.get_error()
        if self.stuck:
            reason = "it allows nothing here, and the answer is not complete"
        raise GrammarError(f"the grammar failed after {len(self._tokens):,} tokens: {readable(reason)}")


# A name (before a colon), a string or a number in a JSON text.
_PARTS = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*")(?=\s*:)|"(?:[^"\\]|\\.)*"|(?P<number>-?\d[\d.eE+-]*)')
_DELETE = "\x7f"  # llguidance writes it in names only as an escape


def as_read(text: str) -> str | None:
    r"""A JSON text with names and numbers in the form that a parser returns; None if parsing loses data.

    A grammar compares characters. It allows a name twice in an object, of which a parser keeps one, and a number beyond the
    range of a float, which becomes infinite. It takes ``\u0061`` for another name than ``a``, and 0.999... with thirty
    digits for less than 1. Names and numbers that are parsed as they are spelled stay unchanged.
    """
    try:
        json.loads(text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):  # a name with a lone surrogate is a ValueError, too
        return None
    return _PARTS.sub(_spelled, text)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> None:
    """Refuses an object with a name twice, or with a lone surrogate in a name."""
    for name in (names := dict(pairs)):
        name.encode()
    if len(names) < len(pairs):
        raise ValueError("a name comes twice")


def _finite(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits:.40} is infinite")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _spelled(part: re.Match[str]) -> str:
    """A name without needless escapes; a number with a fraction or exponent as its float, if that differs."""
    whole, name, number = part[0], part["name"], part["number"]
    if name is not None and "\\" in name:
        return json.dumps(json.loads(name), ensure_ascii=False).replace(_DELETE, r"\u007f")
    if number is not None and not number.lstrip("-").isdigit():
        value = Decimal(repr(float(number) + 0.0))  # no negative zero
        return whole if _equal(number, value) else f"{value:f}"
    return whole


def _equal(digits: str, value: Decimal) -> bool:
    try:
        return Decimal(digits) == value
    except ArithmeticError:  # an exponent beyond a Decimal
        return False
