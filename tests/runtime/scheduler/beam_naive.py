"""Beam search and the best of all texts, written down plainly over strings: what the rules of a search are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime import Grammar
from runtime.records import Float32
from tests.runtime.grammar.judge import accepts, begins, judge

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class World:
    """A vocabulary, what a model says over it, and the rules.

    Attributes:
        pieces: The bytes of every id.
        eos: Ids that end.
        logprobs: ``(vocab,)`` after a path of new tokens.
        stops: Texts that end a hypothesis.
        grammar: What it must look like.
        limit: Tokens at most.
    """

    pieces: Sequence[bytes]
    eos: frozenset[int]
    logprobs: Callable[[Path], Float32]
    stops: Sequence[str] = ()
    grammar: Grammar | None = None
    limit: int = 4

    def said(self, path: Path) -> bytes:
        """Its bytes, without an eos."""
        return b"".join(self.pieces[token] for token in path if token not in self.eos)

    def next(self, path: Path) -> list[int]:
        """The tokens that may follow."""
        if self.grammar is None:
            return list(range(len(self.pieces)))
        text = self.said(path)
        fine = [t for t, piece in enumerate(self.pieces) if t not in self.eos and piece and begins(self.grammar, text + piece)]
        return fine + (sorted(self.eos) if accepts(self.grammar, text) else [])

    def ending(self, path: Path) -> str | None:
        """Why a path ends, as it is written in the issue: looked at as a whole."""
        if path[-1] in self.eos:
            return "eos"
        whole = len(path) >= self.limit or self._full(path)
        text = self.said(path).decode(errors="replace") if whole else _finished(self.said(path))
        if any(stop in text for stop in self.stops):
            return "stop"
        return "grammar" if self._full(path) else "length" if len(path) >= self.limit else None

    def _full(self, path: Path) -> bool:
        """Whether the grammar lets nothing follow."""
        if self.grammar is None:
            return False
        matcher = judge(self.grammar)
        matcher.consume_tokens(list(self.said(path)))
        return bool(matcher.is_stopped())

    def shown(self, path: Path) -> str:
        """Its text up to the stop string that is complete first, the longest of several."""
        if path[-1] in self.eos:  # whose own text is not shown, and an unfinished character is part of it
            return _finished(self.said(path))
        text = self.said(path).decode(errors="replace")
        for end in range(1, len(text) + 1):
            found = [end - len(stop) for stop in self.stops if text[:end].endswith(stop)]
            if found:
                return text[: min(found)]
        return text

    def total(self, path: Path) -> float:
        """The sum of its log-probabilities."""
        return sum(float(self.logprobs(path[:i])[token]) for i, token in enumerate(path))


def _finished(data: bytes) -> str:
    """The text of whole characters, without one that is still unfinished at the end."""
    import codecs

    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)


def everything(world: World) -> list[Path]:
    """All hypotheses there are."""
    found: list[Path] = []
    running: list[Path] = [()]
    while running:
        grown: list[Path] = [(*path, token) for path in running for token in world.next(path)]
        found += [path for path in grown if world.ending(path)]
        running = [path for path in grown if not world.ending(path)]
    return found


def search(world: World, width: int, penalty: float) -> list[tuple[Path, float]]:
    """The hypotheses of a beam search of which nothing ends early, best first, each with its score."""
    complete: list[tuple[Path, float]] = []
    running: list[Path] = [()]
    while running:
        grown: list[Path] = [(*path, token) for path in running for token in world.next(path)]
        grown.sort(key=lambda path: (-world.total(path), running.index(path[:-1]), path[-1]))
        ended = [path for path in grown[:width] if world.ending(path)]
        complete += [(path, world.total(path) / len(path) ** penalty) for path in ended]
        complete = sorted(complete, key=lambda one: -one[1])[:width]
        running = [path for path in grown if not world.ending(path)][:width]
    return complete
