"""Decoding forwards through recordings of the model's own: the same operations, without the Python around them.

A library's Python costs a small model more than its arithmetic does, and one of 135 million parameters a tenth of it. torch
records which operations a forward calls (`torch.jit.trace`); the recording calls the same ones in the same order.

What makes that safe for any architecture:
- the forward is first run on torch's meta device, which has no numbers: a model that decides anything by them (which expert
  to call, which frequencies to use) fails there, and is not recorded;
- the recording is told no lengths: it is given what each layer's attention sees, and a mask where there is one;
- before it is relied on, both ways compute the same tokens: the first ones, again for every other number of rows, and again
  whenever a path is twice as long as any before. Logits, keys and values have to be equal to the bit.

What is computed to record and to compare is counted as what else goes through the model, and is little beside it: where it
would be more, the model itself is called.

A recording, of which there are up to three kinds, holds no weights of its own, but some 2 MB of operations for each layer.
Of SmolLM2 each takes 1.1 s to make, once, in which torch keeps the interpreter to itself for up to 0.2 s.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.func import functional_call
from transformers.cache_utils import Cache, CacheLayerMixin

from runtime.backends.hf.cache import TorchPack
from runtime.backends.packed import Step

log = logging.getLogger(__name__)

AFTER = 64  # forwards of a kind: a recording takes as long as what it saves in some hundred of them
_MORE = 2  # tokens before the new ones that a recording is made with
_WIDTH = 2  # tokens of a tree that a recording is made with
COMPARED = 4  # tokens that are computed both ways before a recording is relied on
SHARE = 1 / 50  # of a kind's tokens that may be computed beside them
_AT_ONCE = 8  # tokens that may be beyond that, so that a stream alone need not wait

Masks: TypeAlias = torch.Tensor | dict[str, torch.Tensor] | None
Forward: TypeAlias = Callable[..., torch.Tensor]


class Replay:
    """Recordings of a model's forwards of one token for each stream, made when there were enough of them. Owner thread only.

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
    """Of one kind of forward: counted, then made, then compared, then relied on.

    Args:
        model: Of transformers.
        more: Further arguments of its forward.
        count: See `Replay`.
    """

    def __init__(self, model: Any, more: dict[str, Any], count: Callable[[int], None]) -> None:
        self._model, self._more, self._count = model, more, count
        self._forward: Forward | None = None
        self._left = AFTER  # forwards until it is made; -1: never, or it was
        self._seen = 0  # tokens that were asked for
        self._beside = 0  # tokens that were computed to record and to compare
        self._agreed = 0  # of them, those that were the same both ways
        self._rows: set[int] = set()  # numbers of tokens with which it agreed
        self._other_rows: set[int] = set()  # and with which it did not: a kernel may be chosen by them
        self._known = 0  # tokens: shorter pasts were compared
        self._ceiling: int | None = None  # tokens: with so long a past the numbers were others

    @property
    def in_force(self) -> bool:
        """Whether it is relied on."""
        return self._forward is not None and self._agreed >= COMPARED

    def logits(
        self, pack: TorchPack, step: Step, masks: Callable[[], Masks], forward: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """See `Replay.logits`."""
        n = len(step.tokens)
        self._seen += n
        if self._forward is None:
            logits = forward()
            self._left -= self._left > 0
            if self._left == 0:
                self._left = -1
                self._forward = self._made(_arguments(pack, step, masks()), masks())
            return logits
        beyond = self._ceiling is not None and step.past >= self._ceiling
        if beyond or n in self._other_rows:
            return forward()
        if self._agreed >= COMPARED and step.past < self._known and n in self._rows:
            return _run(self._forward, _arguments(pack, step, masks()))
        if self._beside + n > _AT_ONCE + SHARE * self._seen:
            return forward()  # compared later
        self._more_computed(n)
        try:
            got = _run(self._forward, _arguments(pack, step, masks()))
        except Exception as error:  # noqa: BLE001  # it is not relied on yet: the model itself says what is wrong
            log.info("a recording failed: %s", error)
            got = None
        return self._compare(pack, step, got, forward)

    def _more_computed(self, tokens: int) -> None:
        self._beside += tokens
        self._count(tokens)

    def _made(self, arguments: tuple[torch.Tensor, ...], masks: Masks) -> Forward | None:
        """The recording, made with copies of the ends of some step's arguments; None where there can be none."""
        names: tuple[str, ...] = tuple(masks) if isinstance(masks, dict) else ()
        model = _Tensors(self._model, self._more, masked=masks is not None, kinds=names).eval()
        ids, positions, *others = arguments
        end, width = len(others) - model.masks, min(ids.numel(), _WIDTH)
        self._more_computed(width)
        short = [buffer[:, :, -width - _MORE * (i % 4 > 1) :] for i, buffer in enumerate(others[:end])]  # new, new, seen, seen
        short += [mask[..., -width:, -width - _MORE :] for mask in others[end:]]
        copies = ids[:, -width:], positions[:, -width:], *(each.clone() for each in short)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that lengths are fixed; that torch.compile is newer, which wants a compiler
            try:
                named = (*model.named_parameters(), *model.named_buffers())
                functional_call(model, {name: each.to("meta") for name, each in named}, tuple(x.to("meta") for x in copies))
                made = traced(model, copies)
            except Exception as error:  # noqa: BLE001  # whatever the library cannot record stays as it is
                log.info("forwards are not recorded: %s", error)
                return None
        return made

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
            self._forward = None
        elif len(step.tokens) not in self._rows:
            self._other_rows.add(len(step.tokens))
        else:
            self._ceiling = step.past
        return logits


def traced(model: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> Forward:
    """What `torch.jit.trace` makes of a module, with the weights as constants, and nowhere but here.

    `torch.jit.trace` itself enters what it makes into a table of the process, for good: the weights would outlive the model.
    """
    graph, _ = torch._C._create_graph_by_tracing(model, arguments, lambda _: "", True, False)  # noqa: SLF001
    made: Forward = torch._C._create_function_from_graph("forward", graph)  # noqa: SLF001
    return made


def _run(recorded: Forward, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Plainly: what torch's optimiser would save is less than what it takes, in time and in memory."""
    with torch.jit.optimized_execution(False):
        return recorded(*arguments)


def _arguments(pack: TorchPack, step: Step, masks: Masks) -> tuple[torch.Tensor, ...]:
    """Of a recording: ids, positions, of each layer the new places and what is seen, masks."""
    buffers = [buffer for layer in pack.attention for buffer in (*layer.new(), *layer.seen_by_new())]
    some = () if masks is None else masks.values() if isinstance(masks, dict) else (masks,)
    return torch.from_numpy(step.tokens).unsqueeze(0), torch.from_numpy(step.positions).unsqueeze(0), *buffers, *some


class _Tensors(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """The model as a function of tensors alone; see `_arguments`."""

    def __init__(self, model: Any, more: dict[str, Any], *, masked: bool, kinds: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._more = more
        self.masks = len(kinds) or int(masked)
        self._kinds = kinds

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        end = len(others) - self.masks
        buffers, masks = others[:end], others[end:]
        given: dict[str, Any] = dict(self._more)
        if masks:
            given["attention_mask"] = dict(zip(self._kinds, masks, strict=True)) if self._kinds else masks[0]
        layers = [_NewLayer(*buffers[i : i + 4]) for i in range(0, end, 4)]
        out = self.model(input_ids=ids, position_ids=positions, past_key_values=Cache(layers=layers), use_cache=True, **given)
        logits: torch.Tensor = out.logits[0]  # (n, vocab)
        return logits


class _NewLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """A layer that is given its places: those of the new tokens, and all that is seen ``(1, kv_heads, seen, head_dim)``.

    It says that nothing came before. A single token sees all of it, for which no mask is needed; others bring theirs.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False

    def __init__(self, new_keys: torch.Tensor, new_values: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._new = new_keys, new_values
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The buffers are there."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  # what other cache classes want to know
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._new[0].copy_(key_states)
        self._new[1].copy_(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1
