"""`Constraint`: where an answer stands in its grammar, on one llguidance matcher.

Of a finished JSON answer, its grammar saw characters, a program gets names and numbers: what a reader makes of it is checked.
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
from runtime.grammar.compile import readable
from runtime.grammar.masks import Mask, MaskWorkers

_NOTHING = "NoExtension"  # how llguidance's message begins where no token can come


class Constraint:
    """Where one answer stands in its grammar. One caller at a time; every member raises `GrammarError` when it fails.

    The mask of the next token is worked out beside the caller, once `begin` was called; `allowed` waits for what is missing
    of it.

    Args:
        matcher: An `llguidance.LLMatcher` of its own.
        tokenizer: The `llguidance.LLTokenizer` it was made with.
        width: Of the logits; the tokenizer may know an eos beyond it.
        workers: For masks.
        is_json: Answers are JSON that is read, see `sound`.
        said: Tokens the matcher has consumed.
    """

    def __init__(
        self, matcher: Any, tokenizer: Any, width: int, workers: MaskWorkers, *, is_json: bool, said: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._width = width
        self._workers = workers
        self._is_json = is_json
        self._said = list(said)
        self._bits = np.empty((1, (tokenizer.vocab_size + 31) // 32), np.int32)
        self._mask: Mask | None = None
        self._coming: Future[Mask] | None = None
        self._asked = math.inf  # monotonic seconds: since when the mask has been waited for
        self._finished = bool(matcher.is_stopped())
        self.work_seconds = self.wait_seconds = 0.0  # processor time of masks and steps; what the answer waited for masks
        self._check()

    # ---- along the answer ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Has the next mask worked out, beside the caller."""
        if self._coming is None and self._mask is None and not self._finished:
            with suppress(RuntimeError):  # the model was closed
                self._coming = self._workers.submit(self._compute)

    def allowed(self) -> Mask:
        """``(vocab,)`` which tokens may come next, at least one; eos exactly where the answer may end. Not to be changed."""
        if self._finished:
            raise GrammarError(f"the answer is complete after {len(self._said):,} tokens: its grammar lets nothing follow")
        self.ready(None)
        if self._mask is None:
            self._mask = self._joined()
        self._check()
        assert self._mask is not None  # it was just made
        return self._mask

    def ready(self, patience: float | None) -> bool:
        """Whether `allowed` would answer at once, after so many seconds at most; None: however long it takes. Never raises."""
        self.begin()
        if self._coming is None:
            return True
        self._asked = min(self._asked, time.monotonic())
        if not self._coming.done():
            self._workers.hurry(self._coming)
            if not wait([self._coming], patience).done:
                return False
        self.wait_seconds += time.monotonic() - self._asked
        self._asked = math.inf
        return True

    def accept(self, token: int) -> None:
        """The token came next."""
        self.advance([token])

    def advance(self, tokens: Sequence[int]) -> None:
        """Some tokens on, without a mask.

        Raises:
            GrammarError: The first that may not come here is named.
        """
        self._settle()
        began = time.thread_time()
        taken = self._matcher.try_consume_tokens(list(tokens))
        self.work_seconds += time.thread_time() - began
        self._said += tokens[:taken]
        self._check()
        if taken < len(tokens):
            raise GrammarError(
                f"token id {tokens[taken]} cannot be token {len(self._said) + 1:,} of the answer: its grammar does not allow it"
            )
        self._finished = bool(self._matcher.is_stopped())

    def rollback(self, count: int) -> None:
        """Takes the last `count` tokens back; the next mask is begun when it is asked for."""
        if not 0 <= count <= len(self._said):
            raise GrammarError(f"{count} tokens cannot be taken back of {len(self._said):,}")
        self._settle()
        if count and not self._matcher.rollback(count):
            self._check()
            raise GrammarError(f"{count} tokens could not be taken back")
        del self._said[len(self._said) - count :]
        self._finished = bool(self._matcher.is_stopped())

    def fork(self) -> Constraint:
        """A second one at the same place; what happens to either is nothing to the other."""
        self._settle(keep=True)
        copy = Constraint(
            self._matcher.deep_copy(), self._tokenizer, self._width, self._workers, is_json=self._is_json, said=self._said
        )
        copy._mask = self._mask
        return copy

    def could_end(self, back: int = 0, then: bytes = b"") -> bool:
        """Whether the answer may end, and would be sound: before its last `back` tokens, with `then` instead of them."""
        try:
            return self._may_end(back, then.decode()) and self._reads(back, then)
        except UnicodeDecodeError:
            return False

    def sound(self, back: int = 0) -> bool:
        """Whether an answer that ends here, or before its last `back` tokens, is still one of the grammar's once it was read.

        Where it is spelled otherwise than it is read, that is tried out on a copy. Other answers than those of a JSON schema
        are read as they are written.
        """
        return self._reads(back, b"")

    @property
    def stuck(self) -> bool:
        """Whether nothing can follow although the answer is not whole; known once `allowed` has failed."""
        return bool(self._matcher.is_error()) and self._matcher.get_error().startswith(_NOTHING)

    @property
    def finished(self) -> bool:
        """Whether the answer is whole and nothing can follow it; no mask is needed to know it."""
        return self._finished

    def _may_end(self, back: int, then: str) -> bool:
        self._settle(keep=True)
        matcher = self._matcher.deep_copy()
        if back and not matcher.rollback(back):
            return False
        if then and not matcher.consume_tokens(self._tokenizer.greedy_tokenize(then)):
            return False
        return bool(matcher.is_accepting())

    def _reads(self, back: int, then: bytes) -> bool:
        """Whether what is read of the answer is one of the grammar's too."""
        if not self._is_json:
            return True
        began = time.thread_time()
        try:
            text = (self._tokenizer.decode_bytes(self._said[: len(self._said) - back]) + then).decode()
        except UnicodeDecodeError:
            return False
        read = as_read(text)
        sound = read is not None and (read == text or self._may_end(len(self._said), read))
        self.work_seconds += time.thread_time() - began
        return sound

    # ---- on a worker -----------------------------------------------------------------------------------------------

    def _compute(self) -> Mask:
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        mask = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")[: self._width].view(np.bool_)
        self.work_seconds += time.thread_time() - began
        return mask

    # ---- between the two --------------------------------------------------------------------------------------------

    def _joined(self) -> Mask:
        if self._coming is None:
            raise SessionClosedError("the model is closed; load it again")
        coming, self._coming = self._coming, None
        self._asked = math.inf
        try:
            return coming.result()
        except Exception as fault:
            raise GrammarError(f"the grammar failed after {len(self._said):,} tokens: {fault}") from fault

    def _settle(self, *, keep: bool = False) -> None:
        """The matcher is free again; the mask, which holds for this place alone, is dropped."""
        if self._coming is not None:
            self._mask = self._joined()
        if not keep:
            self._mask = None

    def _check(self) -> None:
        """Raises what is wrong with the matcher, and where nothing but an untimely eos is left."""
        if not self._matcher.is_error():
            return
        reason = self._matcher.get_error()
        if self.stuck:
            reason = "it allows nothing here, and the answer is not complete"
        raise GrammarError(f"the grammar failed after {len(self._said):,} tokens: {readable(reason)}")


# A name with the colon behind it, a text, or a number of a text that is JSON.
_PARTS = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*")(?=\s*:)|"(?:[^"\\]|\\.)*"|(?P<number>-?\d[\d.eE+-]*)')
_DELETE = "\x7f"  # stands in names only by its escape, as llguidance writes JSON


def as_read(text: str) -> str | None:
    r"""A JSON text with every name and number as a reader has it; None where the text cannot be read, or not without loss.

    A grammar is a matter of characters. It forbids no name that comes twice in an object, of which a reader keeps one, and no
    number beyond what a float holds, which becomes infinite. It takes ``\u0061`` for another name than ``a``, and 1 with
    thirty digits less than one for less than 1. What is spelled as it is read is left as it is, so that the same text
    comes back where there is nothing to be looked at again.
    """
    try:
        json.loads(text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError):  # a name that is no text is the first, too
        return None
    return _PARTS.sub(_spelled, text)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> None:
    """Refuses an object that has a name twice, or one that is no text: half of a character."""
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
    """A name without needless escapes, a number of a fraction or an exponent as its float, if that is another."""
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
    except ArithmeticError:  # an exponent beyond what even a Decimal holds
        return False
