"""Names of blocks: equal paths, equal names, and nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.adapters.stacks import Routing
from runtime.kv.chain import Link, block_keys, cells

BASE, OTHER = "f" * 64, ("f" * 64, (("a" * 64, 0.5),))


def links(*spans: tuple[Any, list[int]]) -> list[Link]:
    return [cell.link() for cell in cells([(name, np.array(ids, np.int32)) for name, ids in spans])]


def test_blocks_are_64_tokens_and_the_last_one_what_is_left() -> None:
    found = links((BASE, list(range(150))))
    assert [(link.start, link.stop) for link in found] == [(0, 64), (64, 128), (128, 150)]
    assert [link.parent for link in found] == [None, found[0].key, found[1].key]
    assert len({link.key for link in found}) == 3


def test_the_key_is_sha_256_over_parent_namespace_and_little_endian_tokens() -> None:
    (first, second) = links((BASE, [1, *[2] * 63, 70_000]))
    name = b'["' + BASE.encode() + b'", []]'
    head = len(name).to_bytes(4, "little") + name
    tokens = b"".join(token.to_bytes(4, "little") for token in [1, *[2] * 63])
    assert first.key == hashlib.sha256(bytes(32) + head + tokens).digest()
    assert second.key == hashlib.sha256(first.key + head + (70_000).to_bytes(4, "little")).digest()


def test_the_grid_begins_anew_where_the_adapters_change() -> None:
    plain, routed = links((BASE, list(range(200)))), links((BASE, list(range(100))), (OTHER, list(range(100, 200))))
    assert [(link.start, link.stop) for link in routed] == [(0, 64), (64, 100), (100, 164), (164, 200)]
    assert routed[0].key == plain[0].key
    assert routed[2].parent == routed[1].key


@pytest.mark.parametrize(
    "namespace", ["e" * 64, OTHER, ("f" * 64, (("a" * 64, 0.25),)), ("f" * 64, (("b" * 64, 0.5),)), ("f" * 64, OTHER[1] * 2)]
)
def test_another_namespace_is_another_name(namespace: Any) -> None:
    ids = list(range(70))
    assert not {link.key for link in links((BASE, ids))} & {link.key for link in links((namespace, ids))}


def test_a_checkpoint_has_a_name_of_its_own() -> None:
    (cell,) = cells([(BASE, np.arange(64, dtype=np.int32))])
    assert cell.link().key != cell.link(state=True).key
    assert cell.link(30, state=True).tokens == 30


paths = st.lists(st.integers(0, 2), min_size=1, max_size=300)


@given(paths, paths)
def test_two_paths_share_exactly_the_blocks_of_their_common_prefix(one: list[int], two: list[int]) -> None:
    a, b = links((BASE, one)), links((BASE, two))
    for first, second in zip(a, b, strict=False):
        same = one[: first.stop] == two[: second.stop]
        assert (first.key == second.key) == same
    places = [{link.key: link.stop for link in side} for side in (a, b)]
    for key in places[0].keys() & places[1].keys():
        assert one[: places[0][key]] == two[: places[1][key]]


USES = (("a" * 64, 0.5, (1, 2)),)


def test_what_stands_before_an_invocation_has_the_names_of_the_base() -> None:
    ids = [0] * 90 + [1, 2] + [0] * 60
    named, base = block_keys(BASE, ids, uses=USES), block_keys(BASE, ids)
    plain = [link.key for link in links((BASE, ids[:90]), (OTHER, ids[90:]))]
    assert [key for key in named if key in plain] == plain
    assert set(named) & set(base) == set(block_keys(BASE, ids[:64]))
    # another scale, other numbers, another invocation: only what is the base's is the same
    for other in ((("a" * 64, 0.25, (1, 2)),), (("b" * 64, 0.5, (1, 2)),), (("a" * 64, 0.5, (2,)),)):
        assert set(block_keys(BASE, ids, uses=other)) & set(named) <= set(block_keys(BASE, ids[:90]))
    assert block_keys(BASE, ids[:90], uses=USES) == block_keys(BASE, ids[:90])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=400), st.lists(st.integers(1, 400), max_size=6))
def test_every_block_of_a_path_that_ended_there_is_named(ids: list[int], ends: list[int]) -> None:
    uses = (("a" * 64, 0.5, (1, 2)), ("b" * 64, 1.0, (2, 0, 1)), ("c" * 64, 2.0, ()))
    routing = Routing(BASE, uses)
    named = block_keys(BASE, ids, ends, uses)
    assert len(named) == len(set(named))
    places = {key: at for at, key in enumerate(named)}
    for end in {*(end for end in ends if end < len(ids)), len(ids)}:
        for cell in cells(routing.spans(np.array(ids[:end], np.int32))):
            for state in (False, True):
                link = cell.link(state=state)
                assert link.key in places
                assert link.parent is None or places[link.parent] < places[link.key]


@given(st.lists(st.integers(0, 1), max_size=60), st.lists(st.integers(0, 1), min_size=1, max_size=5))
def test_an_adapter_begins_at_the_last_place_where_it_is_invoked(ids: list[int], invocation: list[int]) -> None:
    spans = Routing(BASE, (("a" * 64, 0.5, tuple(invocation)),)).spans(np.array(ids, np.int32))
    n = len(invocation)
    places = [at for at in range(len(ids) - n + 1) if ids[at : at + n] == invocation]
    begin = places[-1] if places else len(ids)
    assert [(name, part.tolist()) for name, part in spans] == [
        (name, part) for name, part in ((BASE, ids[:begin]), (OTHER, ids[begin:])) if part
    ]
