"""`Grammars`: the vocabulary of a model in llguidance's form, and the grammars compiled for it."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from runtime.errors import ForkedError, GrammarError, RuntimeFault, SessionClosedError
from runtime.grammar.constraint import Constraint
from runtime.grammar.masks import MaskWorkers
from runtime.grammar.source import Grammar, json_defaults, readable
from runtime.grammar.trial import CHILD_STACK, LIMITS, check_grammars

T = TypeVar("T")
KEPT = 64  # compiled grammars
_STACK = 2 * CHILD_STACK  # more than in the child, where every grammar is compiled first
_stack_size = threading.Lock()  # the stack size of new threads is a setting of the whole process


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokens of a model, as grammars need them."""

    tokens: Sequence[bytes]  # the bytes of every id, as many as the width of the logits; ``b""`` for ids without a token
    eos: tuple[int, ...]  # ids that end an answer
    special: frozenset[int]  # ids of control tokens, which no text encodes to
    encode: Callable[[str], list[int]] = field(repr=False)  # a text to ids, without special tokens


class Grammars:
    """Makes constraints. Tokenizer, workers and grammars are made on first use; thread-safe.

    Args:
        vocabulary: Returns the model's; called on first use.
    """

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: Any = None
        self._width = 0
        self._workers: MaskWorkers | None = None
        self._compiled: OrderedDict[Grammar, Future[Any]] = OrderedDict()  # matchers in their initial state
        self._held: Counter[Grammar] = Counter()  # number of holders
        self._closed = False
        self._pid = os.getpid()

    def ready(self, grammar: Grammar) -> bool:
        """Whether a constraint can be made without compilation.

        Raises:
            ForkedError: The model belongs to another process.
        """
        if os.getpid() != self._pid:  # a fork has no workers, and its locks may stay held
            raise ForkedError.of(self._pid)
        with self._lock:
            made = self._compiled.get(grammar)
        return made is not None and made.done() and made.exception() is None

    def prepare(self, grammar: Grammar) -> None:
        """Checks and compiles the grammar. Blocks: 0.2 s the first time (more for large vocabularies), about 5 s at most.

        Raises:
            GrammarError: It cannot be used; the message has llguidance's own.
            SessionClosedError: The model was closed.
        """
        fault = self.prepare_all([grammar])[grammar]
        if fault is not None:
            raise fault

    def prepare_all(self, grammars: Iterable[Grammar]) -> dict[Grammar, BaseException | None]:
        """Checks and compiles several in little more time than one takes; returns the error of each. Blocks.

        Raises:
            SessionClosedError: The model was closed.
        """
        if os.getpid() != self._pid:
            raise ForkedError.of(self._pid)
        mine: dict[Grammar, Future[Any]] = {}
        made: dict[Grammar, Future[Any]] = {}
        with self._lock:
            if self._closed:
                raise SessionClosedError("the model is closed; load it again")
            for grammar in grammars:
                if grammar not in self._compiled:
                    mine[grammar] = self._compiled[grammar] = Future()
                made[grammar] = self._compiled[grammar]
                self._compiled.move_to_end(grammar)
            self._drop_oldest()
        self._make(mine)
        return {grammar: future.exception() for grammar, future in made.items()}

    def _make(self, wanted: Mapping[Grammar, Future[Any]]) -> None:
        """Compiles the valid ones, and completes all futures."""
        try:
            faults: Mapping[Grammar, BaseException | None] = check_grammars(wanted) if wanted else {}
        except BaseException as fault:  # noqa: BLE001  # goes to all waiters, and to this caller
            faults = dict.fromkeys(wanted, fault)
        for grammar, future in wanted.items():
            try:
                if (refusal := faults[grammar]) is not None:
                    raise refusal
                future.set_result(_on_deep_stack(partial(self._compile, grammar)))
            except BaseException as fault:  # noqa: BLE001  # as above
                with self._lock:
                    if self._compiled.get(grammar) is future:
                        del self._compiled[grammar]
                future.set_exception(fault)

    @contextmanager
    def holding(self, grammars: Iterable[Grammar]) -> Iterator[None]:
        """Keeps these compiled, however many others there are."""
        held = list(grammars)
        with self._lock:
            self._held.update(held)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(held)
                self._held = +self._held
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drops grammars beyond `KEPT` that are not held, oldest first. Needs the lock."""
        free = [grammar for grammar in self._compiled if not self._held[grammar]]
        for grammar in free[: max(len(self._compiled) - KEPT, 0)]:
            del self._compiled[grammar]

    def constraint(self, grammar: Grammar, prefix: Sequence[int] = ()) -> Constraint:
        """The state of a new answer after the tokens of `prefix`; compiles the grammar first if necessary.

        Raises:
            GrammarError: The grammar cannot be used, does not allow the prefix, or lets nothing follow it.
            SessionClosedError: The model was closed.
        """
        self.prepare(grammar)
        with self._lock:
            if self._closed:
                raise SessionClosedError("the model is closed; load it again")
            made = self._compiled.get(grammar)
            if self._workers is None:
                self._workers = MaskWorkers()
            workers = self._workers
        if made is None:  # meanwhile dropped because of many others
            return self.constraint(grammar, prefix)
        is_json = grammar.kind == "json_schema"
        new = Constraint(made.result().deep_copy(), self._tokenizer, self._width, workers, is_json=is_json)
        if prefix:
            new.advance(prefix)
        if new.finished:
            raise GrammarError(f"the answer is complete after {len(prefix):,} tokens: its grammar lets nothing follow")
        return new

    def close(self) -> None:
        """Ends the workers. Idempotent; does nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, None
            self._compiled.clear()
        if workers is not None:
            workers.close()

    def _compile(self, grammar: Grammar) -> Any:
        """An `llguidance.LLMatcher` in its initial state."""
        import llguidance

        with self._tokenizer_lock:
            if self._tokenizer is None:
                vocabulary = self._vocabulary()
                self._tokenizer, self._width = _tokenizer_of(vocabulary), len(vocabulary.tokens)
        options = {"defaults": json_defaults(grammar.source)} if grammar.kind == "json_schema" else {}
        text = getattr(llguidance.LLMatcher, f"grammar_from_{grammar.kind}")(grammar.source, **options)
        matcher = llguidance.LLMatcher(self._tokenizer, text, limits=llguidance.LLParserLimits(**LIMITS), log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # fails now for a grammar whose first step is too large
        if matcher.is_error():
            raise GrammarError(f"the {grammar.label} cannot be used: {readable(matcher.get_error())}")
        return matcher


class _Tokens:
    """A vocabulary as `llguidance.TokenizerWrapper` reads it."""

    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        width = len(vocabulary.tokens)
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(i for i in vocabulary.special if i < width)
        if not vocabulary.eos:  # an eos beyond the logits, where masks are cut
            self.tokens.append(b"<eos>")
            self.special_token_ids.append(width)
        self.eos_token_id = vocabulary.eos[0] if vocabulary.eos else width
        self._encode = vocabulary.encode
        self._width = width
        self._ids: dict[bytes, int] | None = None
        self._longest = 0

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a forced text, as the model's own tokenizer encodes it."""
        data = text if isinstance(text, bytes) else text.encode()
        ids = self._encode(data.decode(errors="replace"))
        return ids if max(ids, default=0) < self._width else self._longest_pieces(data)

    def _longest_pieces(self, data: bytes) -> list[int]:
        """Ids by longest match, for a tokenizer that knows more ids than there are logits."""
        if self._ids is None:
            hidden = set(self.special_token_ids)
            self._ids = {piece: i for i, piece in enumerate(self.tokens) if piece and i not in hidden}
            self._longest = max(map(len, self._ids), default=1)
        ids, at = [], 0
        while at < len(data):
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is None:  # llguidance then forces nothing and leaves the choice to the mask
                break
            ids.append(self._ids[data[at:end]])
            at = end
        return ids


def _tokenizer_of(vocabulary: GrammarVocabulary) -> Any:
    import llguidance

    tokens = _Tokens(vocabulary)
    try:
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokens), eos_token=list(vocabulary.eos) or tokens.eos_token_id
        )
    except Exception as fault:
        raise GrammarError(f"this model's vocabulary cannot be used with grammars: {fault}") from fault


def _on_deep_stack(work: Callable[[], T]) -> T:
    """Runs `work` on a thread whose stack is deep enough for nested rules."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except RuntimeFault as fault:
            done.set_exception(fault)
        except BaseException as fault:  # noqa: BLE001  # a border: a Rust panic is a BaseException
            done.set_exception(GrammarError(f"the grammar could not be compiled: {fault}"))

    thread = threading.Thread(target=run, name="elsewise-grammar-compile", daemon=True)
    with _stack_size:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()
