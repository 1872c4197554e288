"""On every backend: masks are computed while a forward runs, and each request of a batch follows its own grammar."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from runtime import GenerationOptions, Grammar, LanguageModel, SamplingOptions, TokenRecord, load
from tests.fakes import Turnstile, settled
from tests.runtime.grammar.judge import accepts, begins
from tests.runtime.grammar.matchers import watch_masks
from tests.runtime.grammar.samples import ALL, LARK, REGEX
from tests.tiny_models import tiny_path

PROMPT = [int(i) for i in b"What day is it?"]
CASES = [
    ("fake", ""),
    ("hf", "llama_wide"),
    ("mlx", "llama_wide"),
    *(pytest.param((backend, "mamba"), marks=pytest.mark.slow) for backend in ("hf", "mlx")),
]


@pytest.fixture(params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    backend, kind = request.param
    with load(tiny_path(kind) if kind else "", backend=backend) as made:
        yield made
        assert settled(made)[1].leases == 0


def said(records: list[TokenRecord]) -> bytes:
    return b"".join(r.token_bytes for r in records if r.finish_reason != "eos")


def test_the_next_mask_is_ready_before_its_forward_computes(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks order, not time: the forward is held until the mask is ready, so a mask computed later would time out."""
    done: dict[int, threading.Event] = {}
    watch_masks(monkeypatch, lambda _, accepted: done.setdefault(accepted, threading.Event()).set())
    gate = Turnstile()
    gate.stand_before(model)
    model.cache_kv(PROMPT)
    gate.shut()
    records: list[TokenRecord] = []
    options = GenerationOptions(grammar=REGEX, seed=4, max_tokens=6)
    asking = threading.Thread(target=lambda: records.extend(model.generate_sync(PROMPT, options)))
    asking.start()
    try:
        for accepted in range(1, 6):
            gate.wait()
            # then the mask for the logits of a held forward is computed before the forward runs
            assert done.setdefault(accepted, threading.Event()).wait(60), f"no mask after {accepted} tokens"
            assert len(records) <= accepted
            gate.let_through()
    finally:
        gate.open()
        asking.join(60)
    assert len(records) == 6
    assert begins(REGEX, said(records))


@pytest.mark.slow
def test_requests_of_one_batch_each_follow_their_own_grammar(model: LanguageModel) -> None:
    wanted: list[Grammar | None] = [*ALL.values(), None, Grammar.regex("[a-f]{12}"), LARK, Grammar.regex("(yes|no)")]
    prompts = [[*PROMPT, place] for place in range(len(wanted))]
    options = [
        GenerationOptions(
            grammar=grammar,
            seed=place,
            max_tokens=90,
            ignore_eos=grammar is None,
            sampling=SamplingOptions(temperature=0.9),
        )
        for place, grammar in enumerate(wanted)
    ]

    async def together() -> list[list[TokenRecord]]:
        got: list[list[TokenRecord]] = [[] for _ in wanted]
        async for number, record in model.generate_many(prompts, options):
            got[number].append(record)
        return got

    before = settled(model)[0].forward_calls
    batch = asyncio.run(together())
    forwards = settled(model)[0].forward_calls - before
    for grammar, records in zip(wanted, batch, strict=True):
        if grammar is not None:
            assert begins(grammar, said(records))
            assert accepts(grammar, said(records)) != records[-1].incomplete
    assert sum(accepts(g, said(r)) for g, r in zip(wanted, batch, strict=True) if g is not None) >= 4
    if "recurrent" not in model.info.attention_kinds:  # the requests shared forwards
        assert forwards < sum(map(len, batch)) / 2
    # and each answer equals the one computed alone
    model.clear_cache()
    for prompt, own, records in zip(prompts, options, batch, strict=True):
        alone = list(model.generate_sync(prompt, own))
        assert [(r.token_id, r.origin, r.finish_reason) for r in alone] == [
            (r.token_id, r.origin, r.finish_reason) for r in records
        ]
