"""Sessions under an activated adapter: base KV before the invocation, the adapter's after it; both are cached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import (
    AdapterSpan,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
    SessionConfig,
    SnapshotMismatchError,
    block_keys,
    load,
)
from runtime.backends.fake import Behaviour
from runtime.options.load import BlockOptions
from runtime.session.manifest import AdapterOf, Manifest
from tests.block_stores import SHELVES, MemoryBlocks, memory_options
from tests.fakes import fake_model, settled, some_ids
from tests.runtime.adapters.makers import INVOCATION, Peft, save_adapter
from tests.runtime.adapters.test_activated import plain
from tests.runtime.adapters.toys import INVOCATION as TOY_INVOCATION
from tests.runtime.adapters.toys import toy_adapter
from tests.runtime.session.subjects import greedy
from tests.tiny_models import tiny_path

TOLERANCE = 1e-4  # nats
BEGIN = 90  # in the middle of the second block
SAID, NEW = 120, 5
IDS = [*plain(1, BEGIN), *INVOCATION, *plain(2, SAID - BEGIN - len(INVOCATION))]
REST = plain(3, NEW)
both = pytest.mark.parametrize("backend", ["hf", "mlx"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters: `act`, different weights under the same name, and the same weights under another invocation."""
    made: Path = tmp_path_factory.mktemp("activated")
    save_adapter(made / "act", "llama", seed=3, alora_invocation_tokens=INVOCATION)
    save_adapter(made / "swapped" / "act", "llama", seed=4, alora_invocation_tokens=INVOCATION)
    save_adapter(made / "moved" / "act", "llama", seed=3, alora_invocation_tokens=INVOCATION[1:])
    return made


@pytest.fixture
def shelf(request: pytest.FixtureRequest) -> Iterator[MemoryBlocks]:
    name = request.node.nodeid
    yield SHELVES.setdefault(name, MemoryBlocks())
    del SHELVES[name]


@pytest.fixture
def options(request: pytest.FixtureRequest, shelf: MemoryBlocks) -> BlockOptions:
    return memory_options(request.node.nodeid)


def opened(backend: str, options: BlockOptions, *folders: Path) -> LanguageModel:
    model = load(tiny_path("llama"), backend=backend, threads=1, blocks=options)
    for folder in folders:
        model.load_adapter(model.add_adapter(folder, "act"))
    return model


def saved(backend: str, options: BlockOptions, folder: Path, *, scale: float = 1.0) -> list[int]:
    """Runs a session under the adapter and saves its blocks; returns the ids with KV."""
    with opened(backend, options, folder) as model, model.open_session(SessionConfig(adapters=(("act", scale),))) as session:
        session.ensure_prefix_sync(IDS)
        list(session.decode_sync(replace(greedy(3), top_k=10)))  # as many as sessions keep
        said = session.ids
        assert model.save_blocks(said, adapters=(("act", scale),)).tokens >= len(said) - 1  # the last drawn token has no KV
    return said[:-1]


@pytest.mark.slow
@both
def test_a_restored_session_equals_a_fresh_one_and_recomputes_nothing(backend: str, options: BlockOptions, root: Path) -> None:
    said = saved(backend, options, root / "act")
    with opened(backend, options, root / "act") as model, model.open_session(SessionConfig(adapters=("act",))) as session:
        before = settled(model)[0]
        session.ensure_prefix_sync([*said, *REST])
        now = settled(model)[0]
        assert now.tokens_computed - before.tokens_computed <= 1 + NEW
        assert now.tokens_restored == len(said)
        got = session.logprobs_sync()
        np.testing.assert_allclose(
            got, model.next_token_logprobs_uncached([*said, *REST], adapters=["act"]), atol=TOLERANCE, rtol=0
        )
    expected = Peft("llama", act=root / "act").logprobs([*said, *REST], ("act", 1.0))[-1]
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@both
def test_the_blocks_before_the_invocation_serve_the_base_model(backend: str, options: BlockOptions, root: Path) -> None:
    said = saved(backend, options, root / "act")
    with opened(backend, options) as model:  # without the adapter
        assert model.prefix_match(said, adapters=()).tokens == BEGIN
        before = settled(model)[0].tokens_computed
        got = model.next_token_logprobs_sync(said, adapters=())
        assert settled(model)[0].tokens_computed - before == len(said) - BEGIN
        np.testing.assert_allclose(got, model.next_token_logprobs_uncached(said, adapters=()), atol=TOLERANCE, rtol=0)


@pytest.mark.sampled(1)
@both
@pytest.mark.parametrize("change", ["scale", "swapped", "moved"])
def test_the_blocks_after_the_invocation_serve_no_other_adapter(
    backend: str, change: str, options: BlockOptions, root: Path
) -> None:
    said = saved(backend, options, root / "act")
    folder, scale = (root / "act", 0.5) if change == "scale" else (root / change / "act", 1.0)
    begin = BEGIN + (change == "moved")  # its invocation begins one token later: the base's KV reaches further
    with opened(backend, options, folder) as model:
        adapters = (("act", scale),)
        assert model.prefix_match(said, adapters=adapters).tokens == BEGIN
        before = settled(model)[0]
        got = model.next_token_logprobs_sync(said, adapters=adapters)
        now = settled(model)[0]
        assert now.tokens_computed - before.tokens_computed == len(said) - BEGIN
        expected = model.next_token_logprobs_uncached(said, adapters=adapters)
        np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)
        with model.open_session(SessionConfig(adapters=adapters)) as session:
            session.ensure_prefix_sync(said)
            assert [span.start for span in session.explain_context().adapters] == [0, begin]


@pytest.mark.slow
@both
def test_a_session_resumes_from_its_snapshot_which_names_every_block(
    backend: str, options: BlockOptions, root: Path, shelf: MemoryBlocks
) -> None:
    adapters = (("act", 0.75),)
    with opened(backend, options, root / "act") as model, model.open_session(SessionConfig(adapters=adapters)) as session:
        session.ensure_prefix_sync(IDS)
        model.save_blocks(IDS, adapters=adapters)
        # the names are those of the block file
        snapshot = session.snapshot()
        assert {bytes.fromhex(key) for key in snapshot.blocks} >= set(shelf.blocks)
        assert {bytes.fromhex(key) for key in snapshot.blocks} >= set(block_keys(model.info.kv_fingerprint, IDS[:64])), (
            "those of the base under the base's names"
        )
        assert session.explain_context().adapters == (
            AdapterSpan(0, BEGIN, ()),
            AdapterSpan(BEGIN, SAID, (("act_alora", 0.75),)),
        )
        row = session.logprobs_sync()
    stored = snapshot.to_mapping()
    with opened(backend, options) as model:
        with pytest.raises(SnapshotMismatchError, match="no adapter 'act_alora' is loaded"):
            model.resume(snapshot)
        model.load_adapter(model.add_adapter(root / "act", "judge"))  # another name for the same numbers
        with model.resume(type(snapshot).from_mapping(stored)) as again:
            assert again.manifest.digest != snapshot.manifest.digest, "the name of an adapter is part of it"
            np.testing.assert_allclose(again.logprobs_sync(), row, atol=TOLERANCE, rtol=0)
            assert settled(model)[0].tokens_computed <= 1
            assert again.explain_context().adapters[-1].adapters == (("judge_alora", 0.75),)
    for other in ("swapped", "moved"):
        with opened(backend, options, root / other / "act") as model, pytest.raises(SnapshotMismatchError, match="adapters: "):
            model.resume(snapshot)


@pytest.mark.slow
@both
def test_the_pin_of_a_session_holds_base_and_adapter_kv(backend: str, options: BlockOptions, root: Path) -> None:
    with opened(backend, options, root / "act") as model, model.open_session(SessionConfig(adapters=("act",))) as session:
        session.ensure_prefix_sync(IDS)
        held = settled(model)[1]
        stacks = {edge.stack for edge in held.largest}
        (digest,) = (adapter.digest for adapter in model.info.adapters)
        assert stacks == {(), ((digest, 1.0),)}
        model.set_kv_budget(8 * held.bytes)
        for seed in range(4, 24):  # other texts evict unpinned KV
            model.cache_kv(plain(seed, SAID))
        before = settled(model)[0]
        assert before.kv_evicted_bytes > 0
        assert session.ensure_prefix_sync([*IDS, *REST]).prefilled == NEW
        assert settled(model)[0].tokens_restored == before.tokens_restored


@pytest.mark.slow
@both
def test_a_kv_snapshot_is_restored_under_its_adapter_alone(
    backend: str, options: BlockOptions, root: Path, tmp_path: Path
) -> None:
    with opened(backend, options, root / "act") as model:
        model.kv_snapshot(IDS, tmp_path / "kv", adapters=["act"])
        fresh = model.next_token_logprobs_uncached([*IDS, *REST], adapters=["act"])
    with opened(backend, options, root / "act") as model:
        before = settled(model)[0].tokens_computed
        assert model.kv_restore(tmp_path / "kv") == SAID
        got = model.next_token_logprobs_sync([*IDS, *REST], adapters=["act"])
        np.testing.assert_allclose(got, fresh, atol=TOLERANCE, rtol=0)
        assert settled(model)[0].tokens_computed - before == NEW
        assert model.prefix_match(IDS, adapters=[("act", 0.5)]).tokens == BEGIN
    with opened(backend, options, root / "act") as model:
        assert model.kv_restore(tmp_path / "kv", upto=BEGIN + 1) == BEGIN + 1
        assert model.prefix_match(IDS, adapters=["act"]).tokens == BEGIN + 1
        assert model.prefix_match(IDS, adapters=()).tokens == BEGIN


def test_a_stored_manifest_without_the_invocation_names_no_blocks_and_differs(root: Path) -> None:
    with load(tiny_path("llama"), backend="hf", threads=1) as model:
        model.load_adapter(model.add_adapter(root / "act", "act"))
        with model.open_session(SessionConfig(adapters=("act",))) as session:
            manifest = session.manifest
            assert manifest.adapters[0].invocation == INVOCATION
            stored = manifest.to_mapping()
            assert Manifest.from_mapping(stored) == manifest
            stored["adapters"] = [use[:3] for use in stored["adapters"]]
            old = Manifest.from_mapping(stored)
            assert (old.block_keys(IDS), len(manifest.block_keys(IDS))) == ([], 2 * 3)
            assert old.digest != manifest.digest
            assert "activated by 17 23 5" in old.differences(manifest)[0]


def test_the_manifest_of_a_plain_adapter_keeps_its_stored_form() -> None:
    made = Manifest("n", "m", "t", "", "model", (), (AdapterOf("poet_lora", 1.0, "2" * 64),))
    assert made.to_mapping()["adapters"] == [["poet_lora", 1.0, "2" * 64]]
    assert Manifest.from_mapping(made.to_mapping()) == made
    for odd in (
        ["x"],
        ["x", 1.0, "2", [1], 5],
        ["x", 1.0, "2", ["a"]],
        ["x", "y", "2"],
        ["x", 1.0, "2", "17"],
        ["x", 1.0, "2", [1 << 40]],
        ["x", 1.0, "2", [1] * 1025],
        [1, 2, 3, 4],
    ):
        with pytest.raises(InvalidRequestError, match="no stored manifest"):
            Manifest.from_mapping({**made.to_mapping(), "adapters": [odd]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "lfm2", "falcon_h1"])
@both
def test_activated_adapters_restore_on_sliding_window_and_recurrent_models(
    backend: str, name: str, options: BlockOptions, root: Path
) -> None:
    folder = root / name / "act"
    if not folder.exists():
        save_adapter(folder, name, seed=4, alora_invocation_tokens=INVOCATION)

    def made() -> LanguageModel:
        model = load(tiny_path(name), backend=backend, threads=1, blocks=options)
        model.load_adapter(model.add_adapter(folder, "act"))
        return model

    with made() as model:
        model.cache_kv(IDS, adapters=["act"])
        assert model.save_blocks(IDS, adapters=["act"]).tokens == SAID
        fresh = model.next_token_logprobs_uncached([*IDS, *REST], adapters=["act"])
    with made() as model:
        before = settled(model)[0].tokens_computed
        got = model.next_token_logprobs_sync([*IDS, *REST], adapters=["act"])
        np.testing.assert_allclose(got, fresh, atol=TOLERANCE, rtol=0)
        now = settled(model)[0]
        assert (now.tokens_computed - before, now.tokens_restored) == (NEW, SAID)


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_an_answer_that_contains_the_invocation_is_restored_in_full(
    kind: str, options: BlockOptions, shelf: MemoryBlocks, tmp_path: Path
) -> None:
    folder = toy_adapter(tmp_path / "act", 3, invocation=TOY_INVOCATION)
    bias = dict.fromkeys(TOY_INVOCATION, 100.0)  # only these tokens are drawn
    drawn = GenerationOptions(
        max_tokens=100, sampling=SamplingOptions(temperature=8.0, logit_bias=bias), seed=18, ignore_eos=True, resolve=False
    )
    adapters = ("act",)
    with fake_model(Behaviour(recurrent=kind == "recurrent"), blocks=options) as model:
        model.load_adapter(model.add_adapter(folder))
        prompt = some_ids(1, 90, 40)
        answer = [record.token_id for record in model.generate_sync(prompt, replace(drawn, adapters=adapters))]
        path = [*prompt, *answer]
        (digest,) = (adapter.digest for adapter in model.info.adapters)
        held = model.prefix_match(path, adapters=adapters).tokens
        assert held >= len(path) - 1
        assert model.save_blocks(path, adapters=adapters).tokens == held
        assert digest is not None
        uses = ((digest, 1.0, tuple(TOY_INVOCATION)),)
        ends = [len(prompt), held]
        named = set(block_keys(model.info.kv_fingerprint, path, ends, uses))
        for key in shelf.blocks.keys() - named:  # without the checkpoints on the way, which the path does not name
            del shelf.blocks[key]
        fresh = model.next_token_logprobs_uncached([*path, 9], adapters=adapters)
    with fake_model(Behaviour(recurrent=kind == "recurrent"), blocks=options) as model:
        model.load_adapter(model.add_adapter(folder))
        np.testing.assert_allclose(model.next_token_logprobs_sync([*path, 9], adapters=adapters), fresh, atol=1e-5, rtol=0)
        now = settled(model)[0]
        assert now.tokens_restored == held
        assert now.tokens_computed <= 1 + len(path) - held
