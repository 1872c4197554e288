"""Stored KV of another geometry, or with values that are not finite, is refused before it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from runtime import load
from runtime.backends.stored import Stored
from runtime.errors import SnapshotFormatError
from runtime.kv.packing import pack, unpack
from runtime.options.load import BlockOptions
from tests.block_stores import SHELVES, MemoryBlocks, memory_options
from tests.fakes import engine_of
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

Array = npt.NDArray[np.generic]
IDS = [int(i) for i in random_ids(1, 90)]


def of_kv(change: Callable[[Array], Array]) -> Callable[[Stored], Stored]:
    return lambda arrays: {
        name: np.ascontiguousarray(change(a)) if name.startswith(("keys", "values")) and a.dtype == np.float32 else a
        for name, a in arrays.items()
    }


def of_state(change: Callable[[Array], Array]) -> Callable[[Stored], Stored]:
    return lambda arrays: {
        name: np.ascontiguousarray(change(a)) if name.startswith("state.") else a for name, a in arrays.items()
    }


HARM: dict[str, Callable[[Stored], Stored]] = {
    "narrower heads": of_kv(lambda a: a[..., :-1]),
    "fewer layers": of_kv(lambda a: a[:1]),
    "more layers": of_kv(lambda a: np.concatenate([a, a])),
    "other heads": of_kv(lambda a: np.concatenate([a, a], axis=1)),
    "nan": of_kv(lambda a: np.where(np.arange(a.shape[-1]) == 1, np.float32(np.nan), a)),
    "inf": of_kv(lambda a: np.full_like(a, np.inf)),
    "no layers": lambda arrays: {name: a for name, a in arrays.items() if not name.startswith(("keys", "values"))},
}
STATE_HARM: dict[str, Callable[[Stored], Stored]] = {
    "narrower state": of_state(lambda a: a[..., :-1]),
    "two rows of state": of_state(lambda a: np.concatenate([a, a])),
    "nan in state": of_state(lambda a: np.full_like(a, np.nan)),
    "part of a state": lambda arrays: {name: a for name, a in arrays.items() if name != "state.0"},
}
CASES = [
    *(("llama", harm) for harm in HARM),
    *(("lfm2", harm) for harm in STATE_HARM),
    *(pytest.param("mamba", harm, marks=pytest.mark.slow) for harm in STATE_HARM),
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize(("name", "harm"), CASES)
def test_damaged_stored_kv_is_refused_and_recomputed(
    name: str, harm: str, backend: str, request: pytest.FixtureRequest
) -> None:
    place = request.node.nodeid
    store = SHELVES[place] = MemoryBlocks()
    options: BlockOptions = memory_options(place)
    try:
        with load(tiny_path(name), backend=backend, blocks=options) as model:
            model.cache_kv(IDS)
            assert model.save_blocks(IDS).tokens == len(IDS)
            expected = model.next_token_logprobs_uncached([*IDS, 5])
            change = {**HARM, **STATE_HARM}[harm]
            bent = 0
            for key, (parent, tokens, data) in list(store.blocks.items()):
                arrays, metadata = unpack(data)
                changed = change(dict(arrays))
                if not all(changed.get(n) is a for n, a in arrays.items()):
                    bent += 1
                    store.blocks[key] = parent, tokens, b"".join(pack(changed, metadata))
                    with pytest.raises(SnapshotFormatError, match=r"stored (KV|keys|values|state)"):
                        engine_of(model).call(partial(engine_of(model).backend.restore, changed)).result()
            assert bent
        with load(tiny_path(name), backend=backend, blocks=options) as model:
            got = model.next_token_logprobs_sync([*IDS, 5])
            np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
            assert model.metrics().tokens_restored == 0
            assert model.prefix_match([*IDS, 5]).tier == "warm"
    finally:
        del SHELVES[place]
