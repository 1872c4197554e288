"""Continuations of one prefix hold it once: the bytes of all packs and of the cache, on real backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from runtime import GenerationOptions, LanguageModel, SamplingOptions, load
from tests.fakes import around_begins, engine_of, settled
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

PREFIX = [int(i) for i in random_ids(31, 1500)]
NEW = 5  # tokens of a branch
KINDS = (  # the last four have recurrent layers, whose chains are rows of a forward
    *(("hf", "llama"), ("mlx", "gemma3")),
    *((backend, name) for backend in ("hf", "mlx") for name in ("lfm2", "falcon_h1")),
)


class Held:
    """The bytes of keys and values in a backend's packs, from the libraries' own arrays, after every forward."""

    def __init__(self, model: LanguageModel) -> None:
        self._backend = cast("Any", engine_of(model).backend)
        self._packs: list[Any] = []
        self.most = 0
        self.rows = 0  # chains whose paths were copied side by side into one forward
        self.shared = 0  # chains that were computed side by side over one K/V
        opened, rows = self._backend.open_pack, self._backend.push_rows

        def open_pack() -> Any:
            self._packs.append(opened())
            return self._packs[-1]

        def looked(act: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                answer = act(*arguments, **named)
                self.look()
                return answer

            return call

        def counted(pack: Any, bucket: Any) -> Any:
            if bucket.shared is None:
                self.rows += len(bucket.slots)
            else:
                self.shared += len(bucket.slots)
                assert bucket.path.size == 0
            return rows(pack, bucket)

        self._backend.open_pack = open_pack
        around_begins(self._backend, looked)
        self._backend.push_rows = counted

    def look(self) -> None:
        """Adds up the bytes held now."""
        self.most = max(self.most, sum(self._backend.pack_bytes(pack) for pack in self._packs))


@pytest.fixture(params=KINDS, ids="-".join)
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    backend, kind = request.param
    with load(tiny_path(kind), backend=backend, threads=1) as made:
        yield made


def said(model: LanguageModel, n: int) -> list[tuple[int, ...]]:
    options = GenerationOptions(max_tokens=NEW, seed=3, ignore_eos=True, top_k=0, sampling=SamplingOptions(temperature=1.5))

    async def main() -> list[tuple[int, ...]]:
        branches: list[tuple[int, ...]] = [()] * n
        async for branch, record in model.continue_many(PREFIX, n, options):
            branches[branch] = (*branches[branch], record.token_id)
        return branches

    return asyncio.run(main())


@pytest.mark.slow
def test_eight_branches_hold_the_prefix_once(model: LanguageModel) -> None:
    held = Held(model)
    per_token, slot = model.info.kv_bytes_per_token, engine_of(model).backend.slot_bytes
    prefix = len(PREFIX) * slot
    # given one branch
    said(model, 1)
    alone, alone_in_all = held.most, settled(model)[0].kv_peak_bytes
    assert alone >= prefix
    # when there are eight, after everything was dropped
    model.clear_cache()
    model.set_kv_budget(model.metrics().kv_budget)  # this resets the peak
    held.most = 0
    branches = said(model, 8)
    assert len(set(branches)) > 4
    # then they hold in addition only their own tokens and states: far less than a second copy of the prefix
    own = len({branch[:m] for branch in branches for m in range(1, NEW + 1)})
    states = 2 * 8 * engine_of(model).backend.state_bytes  # the current state of each branch, and the published ones
    assert held.most - alone <= 2 * own * slot + states < prefix / 4
    assert settled(model)[0].kv_peak_bytes - alone_in_all <= 2 * own * (slot + per_token) + states < prefix / 4
    # nor was it copied for the duration of a forward, also where branches are rows of a batch
    assert held.rows == 0
    assert (held.shared > 0) == ("recurrent" in model.info.attention_kinds)
