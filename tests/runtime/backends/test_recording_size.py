"""What recordings hold: no weights, no text, few operations."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runtime.backends.hf import recording, replay
from runtime.backends.hf.backend import HfBackend, load
from runtime.options import LoadOptions
from tests.runtime.backends.recorded import ALONE, TREE, begun, branched, decoded, in_force, push, rest
from tests.runtime.backends.reference import append, random_ids
from tests.tiny_models import tiny_folder


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AFTER", 2)
    monkeypatch.setattr(replay, "SHARE", 1.0)


@pytest.fixture
def backend() -> Iterator[HfBackend]:
    made = load(tiny_folder("llama"), LoadOptions())
    yield made
    made.unload()


def test_a_recording_is_small(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given what torch writes down of a forward
    graphs: list[tuple[int, Any]] = []
    real = recording.traced

    def traced(*given: Any) -> Any:
        graph = real(*given)
        graphs.append((sum(1 for _ in graph.nodes()), graph))
        return graph

    monkeypatch.setattr(recording, "traced", traced)
    pack = begun(backend)
    push(backend, pack, 3)
    # when a recording is made of it
    rest(backend)
    # then most of what works out lengths is gone, and all that says where in a library's source it was called
    (before, graph) = graphs.pop()
    kinds = [node.kind() for node in graph.nodes()]
    assert len(kinds) < before / 2
    assert not {"aten::size", "aten::Int", "aten::floor_divide", "prim::NumToTensor", "aten::item"} & set(kinds)
    assert {node.sourceRange() for node in graph.nodes()} == {""}
    # and it says what it takes
    assert backend.side_bytes == recording.NODE_BYTES * len(kinds)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_what_a_recording_says_that_it_takes_is_what_it_takes(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a recording that was made and run
    pack = begun(backend)
    push(backend, pack, 3)
    rest(backend)
    push(backend, pack, 8)
    assert in_force(backend) == {ALONE}
    held = backend._replay
    assert held is not None
    told, before = backend.side_bytes, _in_use()
    # when it goes
    held.kinds.clear()
    gc.collect()
    # then about so much is free again
    assert told / 1.4 < before - _in_use() < told * 1.4


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def _in_use() -> int:
    """Bytes that were allocated and not freed, by whatever uses malloc."""
    gc.collect()
    asked = ctypes.CDLL(None).mallinfo2
    asked.restype = _Heap
    heap = asked()
    return int(heap.uordblks + heap.hblkhd)


def test_recording_copies_no_long_path(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = recording.traced

    def trace(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
        sizes.extend(each.shape[-2] if each.ndim == 4 else 0 for each in inputs)
        return real(model, inputs)

    monkeypatch.setattr(recording, "traced", trace)
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 300))
    decoded(backend, pack, 2, 10)
    branched(backend, pack, 3, 10, 2)
    assert in_force(backend) == {ALONE, TREE}
    assert max(sizes) <= 4


def test_an_unloaded_model_is_not_kept_by_its_recordings() -> None:
    backend = load(tiny_folder("llama"), LoadOptions())
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    decoded(backend, pack, 2, 10)
    assert in_force(backend) == {ALONE}
    gone = [weakref.ref(backend._model), *(weakref.ref(each) for each in backend._model.parameters())]
    weights = [StorageWeakRef(each.untyped_storage()) for each in backend._model.parameters()]
    backend.close(pack)
    backend.unload()
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)
    assert all(weight.expired() for weight in weights)
