"""Decoding forwards through recordings of the model's own: the same operations, without the Python around them.

A library's Python costs a small model more than its arithmetic does, and one of 135 million parameters a tenth of it. torch
records which operations a forward calls (`recording`); the recording calls the same ones in the same order.

What makes that safe for any architecture:
- the forward is first run on torch's meta device, which has no numbers: a model that decides anything by them (which expert
  to call, which frequencies to use) fails there, and is not recorded;
- the recording is told no lengths: it is given what each layer's attention sees, and a mask where there is one;
- before it is relied on, both ways compute the same tokens: the first ones, again for every other number of rows, and again
  whenever a path is twice as long as any before. Logits, keys and values have to be equal to the bit.

What is computed to record and to compare is counted as what else goes through the model, and is little beside it: where it
would be more, the model itself is called.

A recording, of which there are up to three kinds, is due after some forwards, and is made while nobody waits for anything, in
parts; who comes meanwhile waits for a layer of the library's forward, or for what torch does with its answer. Of SmolLM2 all
parts take 0.7 s, and a recording 9 MB.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from runtime.backends.hf import recording
from runtime.backends.hf.cache import TorchPack
from runtime.backends.hf.recording import Forward, GaveWayError, Making, Masks
from runtime.backends.packed import Step

log = logging.getLogger(__name__)

AFTER = 64  # forwards of a kind: a recording takes as long as what it saves in some hundred of them
COMPARED = 4  # tokens that are computed both ways before a recording is relied on
SHARE = 1 / 50  # of a kind's tokens that may be computed beside them
_AT_ONCE = 8  # tokens that may be beyond that, so that a stream alone need not wait


class Replay:
    """Recordings of a model's forwards of one token for each stream. Owner thread only.

    Args:
        model: Of transformers, with a cache of attention layers alone; nobody else changes its modules.
        takes: The names of its forward's arguments.
        count: Told how many tokens are about to be computed beside those that were asked for.
    """

    def __init__(self, model: Any, takes: frozenset[str], count: Callable[[int], None]) -> None:
        self._model = model
        self._count = count
        self._suits = {"past_key_values", "position_ids"} <= takes
        self._more = {"logits_to_keep": 0} if "logits_to_keep" in takes else {}
        self.kinds: dict[tuple[bool, bool], Recording] = {}  # masked, one token alone

    @property
    def due(self) -> bool:
        """Whether a part of a recording is to be made."""
        return any(each.due for each in self.kinds.values())

    @property
    def nbytes(self) -> int:
        """That all recordings take."""
        return sum(each.nbytes for each in self.kinds.values())

    def rest(self, asked: Callable[[], bool]) -> None:
        """Makes a part of a recording, of that which was asked for most.

        Args:
            asked: Whether somebody asks for something: then it gives way, and does the part another time.
        """
        due = [each for each in self.kinds.values() if each.due]
        if due:
            max(due, key=lambda each: each.seen).rest(asked)

    def logits(
        self, pack: TorchPack, step: Step, masks: Callable[[], Masks], forward: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """What `forward` answers, ``(n, vocab)``, from a recording where that is known to answer the same.

        Args:
            pack: For this step every layer is prepared.
            step: In place or a tree, all of its tokens wanted.
            masks: What the model is given as its attention mask.
            forward: The same by the model itself.
        """
        if not self._suits or not pack.attention or not all(layer.is_initialized for layer in pack.attention):
            return forward()
        kind = step.mask is not None, len(step.tokens) == 1
        recording = self.kinds.get(kind)
        if recording is None:
            recording = self.kinds[kind] = Recording(self._model, self._more, self._count)
        return recording.logits(pack, step, masks, forward)


class Recording:
    """Of one kind of forward: counted, then made at rest, then compared, then relied on.

    Args:
        model: Of transformers.
        more: Further arguments of its forward.
        count: See `Replay`.

    Attributes:
        seen: Tokens that were asked for.
        nbytes: That it takes.
    """

    def __init__(self, model: Any, more: dict[str, Any], count: Callable[[int], None]) -> None:
        self._model, self._more, self._count = model, more, count
        self._making: Making | None = None
        self._forward: Forward | None = None
        self._left = AFTER  # forwards until it is due
        self.seen = self.nbytes = 0
        self._beside = 0  # tokens that were computed to record and to compare
        self._agreed = 0  # of them, those that were the same both ways
        self._rows: set[int] = set()  # numbers of tokens with which it agreed
        self._other_rows: set[int] = set()  # and with which it did not: a kernel may be chosen by them
        self._known = 0  # tokens: shorter pasts were compared
        self._ceiling: int | None = None  # tokens: with so long a past the numbers were others

    @property
    def due(self) -> bool:
        """Whether a part of it is to be made."""
        return self._making is not None and self._affords(self._making.tokens)

    def rest(self, asked: Callable[[], bool]) -> None:
        """Makes the next part of it; see `Replay.rest`."""
        assert self._making is not None
        try:
            self._making.go_on(asked)
        except GaveWayError:
            return
        except Exception as error:  # noqa: BLE001  # whatever the library cannot record stays as it is
            log.info("forwards are not recorded: %s", error)
            self._making = None
            return
        if self._making.made is not None:
            self._forward, self.nbytes = self._making.made, self._making.nbytes
            self._making = None

    @property
    def in_force(self) -> bool:
        """Whether it is relied on."""
        return self._forward is not None and self._agreed >= COMPARED

    def logits(
        self, pack: TorchPack, step: Step, masks: Callable[[], Masks], forward: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """See `Replay.logits`."""
        n = len(step.tokens)
        self.seen += n
        if self._forward is None:
            logits = forward()
            if self._left:
                self._left -= 1
                if not self._left:
                    given = _arguments(pack, step, masks())
                    self._making = Making(self._model, self._more, given, masks(), self._more_computed)
            return logits
        beyond = self._ceiling is not None and step.past >= self._ceiling
        if beyond or n in self._other_rows:
            return forward()
        if self._agreed >= COMPARED and step.past < self._known and n in self._rows:
            return recording.run(self._forward, _arguments(pack, step, masks()))
        if not self._affords(n):
            return forward()  # compared later
        self._more_computed(n)
        try:
            got = recording.run(self._forward, _arguments(pack, step, masks()))
        except Exception as error:  # noqa: BLE001  # it is not relied on yet: the model itself says what is wrong
            log.info("a recording failed: %s", error)
            got = None
        return self._compare(pack, step, got, forward)

    def _affords(self, tokens: int) -> bool:
        """Whether so many more may be computed beside those that were asked for."""
        return self._beside + tokens <= _AT_ONCE + SHARE * self.seen

    def _more_computed(self, tokens: int) -> None:
        self._beside += tokens
        self._count(tokens)

    def _compare(
        self, pack: TorchPack, step: Step, got: torch.Tensor | None, forward: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The model's own answer, whose keys and values stay; whether the recording may stand for it is known then."""
        places = [place for layer in pack.attention for place in layer.new()]
        written = [place.clone() for place in places]
        logits = forward()
        if not bool(torch.isfinite(logits).all()):
            return logits  # NaN equals nothing: it says nothing of the recording
        if got is not None and torch.equal(got, logits) and all(map(torch.equal, written, places)):
            self._agreed += len(step.tokens)
            self._rows.add(len(step.tokens))
            self._known = max(self._known, 2 * step.past)
        elif self._agreed < COMPARED:
            self._forward, self.nbytes = None, 0
        elif len(step.tokens) not in self._rows:
            self._other_rows.add(len(step.tokens))
        else:
            self._ceiling = step.past
        return logits


def _arguments(pack: TorchPack, step: Step, masks: Masks) -> tuple[torch.Tensor, ...]:
    """Of a recording: ids, positions, of each layer the new places and what is seen, masks."""
    buffers = [buffer for layer in pack.attention for buffer in (*layer.new(), *layer.seen_by_new())]
    some = () if masks is None else masks.values() if isinstance(masks, dict) else (masks,)
    return torch.from_numpy(step.tokens).unsqueeze(0), torch.from_numpy(step.positions).unsqueeze(0), *buffers, *some
