"""How a model's forward is recorded: part by part, so that whoever comes in between does not wait for all of it.

torch writes down which operations a forward calls (`torch.jit.trace`). Half of what it writes are lengths that the library's
Python works out of shapes; those that stay the same are put in as the numbers they are. Where in the library's source each
operation was called is written down too, which takes more memory than all the rest: it goes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.func import functional_call
from transformers.cache_utils import Cache, CacheLayerMixin

NODE_BYTES = 4300  # of a recorded operation, with the copies that torch makes of it before it is run
_WIDTH, _OTHER_WIDTH = 2, 3  # tokens of a tree that a recording is made and tried with
_MORE, _OTHER_MORE = 2, 5  # tokens before the new ones

Masks: TypeAlias = torch.Tensor | dict[str, torch.Tensor] | None
Given: TypeAlias = tuple[torch.Tensor, ...]
Forward: TypeAlias = Callable[..., torch.Tensor]


class GaveWayError(Exception):
    """Somebody asked for something meanwhile."""


class Making:
    """A recording that is being made. Owner thread only.

    Args:
        model: Of transformers.
        more: Further arguments of its forward.
        given: What one of its forwards was given: ids, positions, of each layer the new places and what is seen, masks.
        masks: Those masks by name.
        count: Told how many tokens are about to be computed.

    Attributes:
        made: It, once all parts are done.
        nbytes: That it takes: it has no weights of its own.
    """

    def __init__(self, model: Any, more: dict[str, Any], given: Given, masks: Masks, count: Callable[[int], None]) -> None:
        names: tuple[str, ...] = tuple(masks) if isinstance(masks, dict) else ()
        self._model = _Tensors(model, more, masked=masks is not None, kinds=names).eval()
        self._shapes = tuple(each.to("meta") for each in given)  # nobody's numbers are kept
        alone = given[0].numel() == 1
        self._lengths = (1 if alone else _WIDTH, _MORE), (1 if alone else _OTHER_WIDTH, _OTHER_MORE)
        (one, _), (other, _) = self._lengths
        self._count = count
        self._graph: Any = None
        self._parts = [(self._prove, 0), (self._record, one), (self._settle, one + other), (self._try, one)]
        self.made: Forward | None = None
        self.nbytes = 0

    @property
    def tokens(self) -> int:
        """That the next part computes."""
        return self._parts[0][1]

    def go_on(self, asked: Callable[[], bool]) -> None:
        """Does the next part.

        Args:
            asked: Whether somebody asks for something; looked at before each layer of the library's forward.

        Raises:
            GaveWayError: Somebody did; the part is still to be done.
            Exception: Whatever the library cannot record.
        """
        self._model.asked = asked
        part, _ = self._parts[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that lengths are fixed; that torch.compile is newer, which wants a compiler
            part()
        del self._parts[0]

    def _prove(self) -> None:
        """A model that decides anything by its numbers fails on a device that has none."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        example = tuple(each.to("meta") for each in self._example(*self._lengths[0]))
        functional_call(self._model, {name: each.to("meta") for name, each in named}, example)

    def _record(self) -> None:
        example = self._example(*self._lengths[0])
        self._count(example[0].numel())
        self._graph = traced(self._model, example)

    def _settle(self) -> None:
        """Lengths that are the same for two examples become constants."""
        probe, found = compiled(_lengths_alone(self._graph)), []
        for lengths in self._lengths:
            example = self._example(*lengths)
            self._count(example[0].numel())
            found.append(run(probe, example))
        _fix_lengths(self._graph, *found)

    def _try(self) -> None:
        """Its first run takes longer: torch readies it."""
        example = self._example(*self._lengths[0])
        forward = compiled(self._graph)
        self._count(example[0].numel())
        run(forward, example)
        self.nbytes = NODE_BYTES * sum(1 for _ in self._graph.nodes())
        self.made, self._graph = forward, None

    def _example(self, width: int, more: int) -> Given:
        """What a forward of so many tokens behind so many others is given, with nothing in it."""
        ids, positions, *others = self._shapes
        end = len(others) - self._model.masks
        given = [ids.new_zeros(1, width, device="cpu"), positions.new_zeros(1, width, device="cpu")]
        for i, buffer in enumerate(others[:end]):  # new, new, seen, seen
            heads, dim = buffer.shape[1], buffer.shape[3]
            given.append(buffer.new_zeros(1, heads, width + more * (i % 4 > 1), dim, device="cpu"))
        for mask in others[end:]:
            seen = mask.new_zeros(*mask.shape[:-2], width, width + more, device="cpu")
            given.append(~seen if seen.dtype == torch.bool else seen)
        return tuple(given)


def traced(model: torch.nn.Module, arguments: Given) -> Any:
    """The operations that a module calls, with the weights as constants, as a graph of torch's, and nowhere but here.

    `torch.jit.trace` itself enters what it makes into a table of the process, for good: the weights would outlive the model.
    """
    graph, _ = torch._C._create_graph_by_tracing(model, arguments, lambda _: "", True, False)  # noqa: SLF001
    elsewhere = torch._C.Graph()  # noqa: SLF001
    blank = elsewhere.create("prim::Constant")
    for node in graph.nodes():
        node.copyMetadata(blank)  # it says nothing of where it was called
    return graph


def compiled(graph: Any) -> Forward:
    """A graph as something that can be called; nothing else changes it from then on."""
    made: Forward = torch._C._create_function_from_graph("forward", graph)  # noqa: SLF001
    return made


def run(recorded: Callable[..., Any], arguments: Given) -> Any:
    """Plainly: what torch's optimiser would save is less than what it takes, in time and in memory."""
    with torch.jit.optimized_execution(False):
        return recorded(*arguments)


def _whole_numbers(graph: Any) -> list[Any]:
    """The nodes that give a length, or what was worked out of lengths."""
    return [node for node in graph.nodes() if node.kind() in ("aten::size", "aten::Int")]


def _lengths_alone(graph: Any) -> Any:
    """A copy that answers with a list of those numbers, in their order."""
    copy = graph.copy()
    numbers = copy.create("prim::ListConstruct", [node.output() for node in _whole_numbers(copy)], 1)
    numbers.output().setType(torch._C.ListType(torch._C.IntType.get()))  # noqa: SLF001
    copy.appendNode(numbers)
    copy.registerOutput(numbers.output())
    copy.eraseOutput(0)
    return copy


def _fix_lengths(graph: Any, first: Sequence[int], second: Sequence[int]) -> None:
    """Puts in those that are the same in two runs, and takes out what only served to work them out."""
    for node, one, other in zip(_whole_numbers(graph), first, second, strict=True):
        if one == other:
            with graph.insert_point_guard(node):
                constant = graph.insertConstant(one)
            node.output().replaceAllUsesWith(constant)
    for node in [node for node in graph.nodes() if node.kind() == "prim::ListConstruct"]:
        numbers = [each.toIValue() for each in node.inputs()]
        if numbers and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            with graph.insert_point_guard(node):
                constant = graph.insertConstant(numbers)
            node.output().replaceAllUsesWith(constant)
    torch._C._jit_pass_dce(graph)  # noqa: SLF001
    torch._C._jit_pass_cse(graph)  # noqa: SLF001


class _Tensors(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """The model as a function of tensors alone; see `Making`."""

    def __init__(self, model: Any, more: dict[str, Any], *, masked: bool, kinds: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.asked: Callable[[], bool] = bool
        self._more = more
        self.masks = len(kinds) or int(masked)
        self._kinds = kinds

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        end = len(others) - self.masks
        buffers, masks = others[:end], others[end:]
        given: dict[str, Any] = dict(self._more)
        if masks:
            given["attention_mask"] = dict(zip(self._kinds, masks, strict=True)) if self._kinds else masks[0]
        layers = [_NewLayer(self.asked, *buffers[i : i + 4]) for i in range(0, end, 4)]
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

    def __init__(
        self,
        asked: Callable[[], bool],
        new_keys: torch.Tensor,
        new_values: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        super().__init__()
        self._new = new_keys, new_values
        self._asked = asked
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
        if self._asked():
            raise GaveWayError
        self._new[0].copy_(key_states)
        self._new[1].copy_(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1
