"""The answer of each layer equals the hidden state of transformers at that layer through the model's own norm and head."""

from __future__ import annotations

import asyncio
import functools
import html
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import (
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    LensCost,
    RuntimeFault,
    UnsupportedFeatureError,
    load,
    spawn,
)
from runtime.lens import MOST_BYTES
from runtime.records import NO_TOKEN, Float32
from tests.fakes import settled
from tests.runtime.adapters.makers import Peft, adapters_of
from tests.runtime.backends.reference import in_turn, log_softmax, random_ids
from tests.tiny_models import tiny_path

NAMES = ("llama", "qwen3", "gpt2", "gemma2", "gemma3", "gemma3_80", "phi3", "mistral", "mamba", "lfm2", "falcon_h1")
TOLERANCE = {"hf": 1e-4, "mlx": 1e-3}  # nats
NORMS = (
    "norm",
    "ln_f",
    "norm_f",
    "final_layernorm",
    "embedding_norm",
)  # names of the final norm in the classes of transformers
VOCAB = 1000
IDS = random_ids(7, 40).tolist()  # past the windows of gemma, phi3 and mistral
PLACES = [5, 6, 7, 39, 20]  # some are adjacent, there are gaps, and no order


@functools.cache
def _model(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()


def through_the_head(name: str, model: Any, ids: Sequence[int]) -> Float32:
    """``(len(ids), layers + 1, vocab)`` by plain transformers: its hidden states, its norm, its head, its soft cap."""
    import torch

    with torch.inference_mode():
        out = model(input_ids=torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
        body = model.base_model
        before = out.hidden_states[:-1]  # the last one is after the norm
        if name == "mamba":  # its list begins after the first layer
            before = (body.embeddings(torch.tensor([list(ids)])), *before[:-1])
        norm = next(getattr(body, each) for each in NORMS if hasattr(body, each))
        rows = [model.get_output_embeddings()(norm(state)[0]) for state in before]
        if (cap := getattr(model.config, "final_logit_softcapping", None)) is not None:
            rows = [torch.tanh(row / cap) * cap for row in rows]
        rows = [row * getattr(model.config, "lm_head_multiplier", 1.0) for row in rows]
        return log_softmax(torch.stack([*rows, out.logits[0]], dim=1).float().numpy())


@pytest.fixture(scope="module", params=in_turn(NAMES))
def case(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, str]]:
    backend, name = request.param
    with load(tiny_path(name), backend) as model:
        yield model, name


def whole(run: Any) -> Float32:
    """``(n, layers + 1, vocab)`` of a run with all alternatives."""
    rows = np.empty(run.top_ids.shape, np.float32)
    np.put_along_axis(rows, run.top_ids, run.top_logprobs, axis=2)
    return rows


@pytest.mark.sampled(1)
def test_every_layer_of_every_architecture_equals_transformers(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    expected = through_the_head(name, _model(name), IDS)
    tolerance = TOLERANCE[model.info.backend]
    # when some positions are read, in any order
    run = model.lens_sync(IDS, PLACES, top_k=VOCAB, tokens=[11, 500])
    # then each layer gives what its hidden state gives through the model's own norm and head
    assert run.layers == model.info.layers == expected.shape[1] - 1
    assert run.positions.tolist() == PLACES
    np.testing.assert_allclose(whole(run), expected[PLACES], atol=tolerance, rtol=0)
    # and the last one is the ordinary answer
    ordinary = model.batch_next_token_logprobs_sync([IDS[: place + 1] for place in PLACES])
    np.testing.assert_allclose(whole(run)[:, -1], ordinary, atol=tolerance, rtol=0)
    assert run.deviation < tolerance
    # and the rest agrees with the rows: the following token, the requested ones, their ranks, the entropy
    following = [IDS[place + 1] if place < 39 else NO_TOKEN for place in PLACES]
    assert run.token_ids.tolist() == [[token, 11, 500] for token in following]
    for row, place in enumerate(PLACES):
        for column, token in enumerate(run.token_ids[row].tolist()):
            if token == NO_TOKEN:
                assert np.isnan(run.logprobs[row, :, column]).all()
                assert not run.ranks[row, :, column].any()
                continue
            np.testing.assert_allclose(run.logprobs[row, :, column], expected[place, :, token], atol=tolerance, rtol=0)
            np.testing.assert_array_equal(
                run.ranks[row, :, column], 1 + (whole(run)[row] > run.logprobs[row, :, column, None]).sum(1)
            )
    entropy = -(np.exp(expected[PLACES].astype(np.float64)) * expected[PLACES]).sum(axis=2)
    np.testing.assert_allclose(run.entropy, entropy, atol=10 * tolerance)


def test_a_lens_computes_one_token_per_position(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    ids = random_ids(11, 60).tolist()
    model.cache_kv(ids)
    model.next_token_logprobs_sync(ids)
    model.lens_sync(ids)  # a recurrent model keeps its state before the last token now
    before = settled(model)[0].tokens_computed
    model.lens_sync(ids)
    assert settled(model)[0].tokens_computed - before == 1
    if "recurrent" not in model.info.attention_kinds:  # the tokens in between come from the cache
        model.lens_sync(ids, [10, 30, 59])
        assert settled(model)[0].tokens_computed - before == 4
    assert settled(model)[1].leases == 0


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_lens_without_a_cache_is_the_same(backend: str) -> None:
    with load(tiny_path("llama"), backend, cache=False, prefill_chunk_tokens=32) as model:
        run = model.lens_sync(IDS, PLACES, top_k=VOCAB)
        np.testing.assert_allclose(whole(run), through_the_head("llama", _model("llama"), IDS)[PLACES], atol=1e-4, rtol=0)
        assert run.reused == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_lens_under_adapters_equals_that_of_peft(backend: str, tmp_path: Path) -> None:
    a, b = adapters_of("llama", tmp_path)
    stack = (("A", 0.5), ("B", -2.0))
    with load(tiny_path("llama"), backend) as model:
        base = model.lens_sync(IDS, [38], top_k=VOCAB)
        for folder in (a, b):
            model.load_adapter(model.add_adapter(folder))
        run = model.lens_sync(IDS, [38], top_k=VOCAB, adapters=stack)
        peft = Peft("llama", A=a, B=b)
        answer = peft.logprobs(IDS, *stack)  # from here on the model of peft computes under the stack
        expected = through_the_head("llama", peft.model.base_model.model, IDS)
        np.testing.assert_allclose(whole(run)[0], expected[38], atol=1e-4, rtol=0)
        np.testing.assert_allclose(whole(run)[0, -1], answer[38], atol=1e-4, rtol=0)
        assert np.abs(whole(run) - whole(base)).max() > 0.05
        np.testing.assert_array_equal(whole(model.lens_sync(IDS, [38], top_k=VOCAB, adapters=())), whole(base))


def quantised(folder: Path) -> Path:
    """The llama with weights of four bits, as mlx_lm writes them."""
    from mlx_lm.utils import load_model, quantize_model, save_model

    model, config = quantize_model(*load_model(tiny_path("llama")), group_size=32, bits=4)
    shutil.copytree(tiny_path("llama"), folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("hf", {"weights": "int8"}),
        ("hf", {"weights": "int4"}),
        ("hf", {"dtype": "bfloat16"}),
        ("hf", {"kv_dtype": "q8"}),
        ("hf", {"kv_dtype": "q4"}),
        ("mlx", {}),  # of a quantised folder
        ("mlx", {"dtype": "bfloat16"}),
        ("mlx", {"kv_dtype": "q8"}),
        ("mlx", {"kv_dtype": "q4"}),
    ],
    ids=str,
)
def test_with_fewer_bits_the_last_layer_is_still_the_answer(backend: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_path("llama") if options else quantised(tmp_path / "llama-4bit")
    with load(folder, backend, **options) as model:
        assert bool(model.info.quantisation) == (not {"dtype", "kv_dtype"} & {*options})
        ordinary = model.next_token_logprobs_sync(IDS)
        run = model.lens_sync(IDS, top_k=VOCAB)
        off = {"q8": 0.2, "q4": 3.0}.get(options.get("kv_dtype", ""), 0.02)  # the ordinary answer has this error itself
        assert run.deviation < off
        likely = ordinary > -5
        np.testing.assert_allclose(whole(run)[0, -1][likely], ordinary[likely], atol=off, rtol=0)


@pytest.mark.slow
def test_a_lens_over_the_pipe_beside_an_answer_is_the_same() -> None:
    async def beside() -> tuple[Any, list[Any], LanguageModel]:
        model = await spawn(tiny_path("llama"), "hf")
        try:
            options = GenerationOptions(max_tokens=30, seed=3, ignore_eos=True)
            stream = asyncio.create_task(_collected(model, options))
            told: list[Any] = []
            run = await model.lens(IDS, range(40), top_k=7, tokens=[3], on_progress=told.append)
            return run, [*told, await stream], model
        finally:
            await model.close_async()

    run, [*told, said], _ = asyncio.run(beside())
    with load(tiny_path("llama"), "hf") as model:
        here = model.lens_sync(IDS, range(40), top_k=7, tokens=[3])
        alone = asyncio.run(_collected(model, GenerationOptions(max_tokens=30, seed=3, ignore_eos=True)))
    np.testing.assert_allclose(run.top_logprobs, here.top_logprobs, atol=1e-4)
    np.testing.assert_array_equal(run.token_ids, here.token_ids)
    assert said == alone
    assert [one.done for one in told] == sorted({one.done for one in told})
    assert (told[-1].done, told[-1].total) == (40, 40)


async def _collected(model: LanguageModel, options: GenerationOptions) -> list[int]:
    return [record.token_id async for record in model.generate(IDS[:10], options)]


def test_invalid_lens_arguments_are_refused_before_compute() -> None:
    with load(tiny_path("llama"), "hf") as model:
        before = settled(model)[0].tokens_computed
        for ids, named, words in (
            (IDS, {"positions": [40]}, "within 0 and 39, not 40"),
            (IDS, {"positions": [-1]}, "within 0 and 39, not -1"),
            (IDS, {"positions": [3, 3]}, "given twice"),
            (IDS, {"positions": []}, "positions is empty"),
            (IDS, {"positions": "12"}, "positions is a list"),
            (IDS, {"positions": 3}, "positions is a list"),
            (IDS, {"positions": [1.5]}, "not 1.5"),
            (IDS, {"positions": [True]}, "not True"),
            (IDS, {"positions": range(10**6)}, "1,000,000 positions of a text of 40 tokens"),
            (IDS, {"positions": range(10**15)}, "positions of a text of 40 tokens"),
            ([], {}, "empty"),
            (IDS, {"tokens": [VOCAB]}, "1000"),
            (IDS, {"top_k": -1}, "top_k"),
        ):
            with pytest.raises(InvalidRequestError, match=words):
                model.lens_sync(ids, **named)
        assert settled(model)[0].tokens_computed == before
        # and the cost of any number of positions is known without computing it
        cost = LensCost.of(model.info, 10**6, top_k=1000)
        assert cost.head_rows == 4 * 10**6
        assert cost.answer_bytes > MOST_BYTES
        assert cost.moment_bytes <= 256 << 20
        with pytest.raises(InvalidRequestError, match="positions at a time"):
            cost.check()


def test_a_lone_surrogate_is_read_as_the_replacement_character() -> None:
    with load("x", "fake") as model:
        ids = model.tokenize("a \ud800 b")
        assert ids == model.tokenize("a \ufffd b")
        run = model.lens_sync(ids, range(len(ids)))
        json.dumps(list(run.rows())).encode()
        run._repr_html_().encode()


def test_an_interrupted_lens_leaves_the_model_as_it_was() -> None:
    with load(tiny_path("llama"), "hf", prefill_chunk_tokens=32) as model:
        ordinary = model.next_token_logprobs_sync(IDS)

        def interrupted(done: int, _total: int | None) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.lens_sync(IDS, range(0, 40, 2), progress=interrupted)
        assert settled(model)[1].leases == 0
        np.testing.assert_array_equal(model.next_token_logprobs_sync(IDS), ordinary)
        assert len(model.lens_sync(IDS, range(40))) == 40


def torch_made_otherwise(how: str) -> Any:
    """A llama that computes the same numbers in another form, so that its layers cannot be read (or not in this way)."""
    from torch.nn import Identity, ModuleList
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(tiny_path("llama"))
    body, norm = own.model, own.model.norm
    if how == "two lists":
        body.others = ModuleList(Identity() for _ in body.layers)
    elif how == "no vectors":
        body.layers[0].register_forward_hook(lambda _module, _args, out: [out])
        body.layers[1].register_forward_pre_hook(lambda _module, args: (args[0][0], *args[1:]))
    elif how == "another state":
        norm.register_forward_pre_hook(lambda _module, args: (args[0] * 2,))
    elif how == "no norm":
        del body.norm
        body.norm = norm.forward
    elif how == "a norm that counts":
        norm.register_forward_hook(lambda _module, _args, out: out * (1 + 0.02 * out.shape[1]))
    return own


def mlx_made_otherwise(how: str) -> Any:
    """The same for mlx-lm."""
    from mlx.nn.layers.base import Module
    from mlx.nn.layers.normalization import RMSNorm
    from mlx_lm.models import llama
    from mlx_lm.utils import load_model

    class Renamed(llama.Model):  # type: ignore[misc]  # mlx-lm has no types
        @property
        def layers(self) -> Any:
            return self.core.layers

        def __call__(self, inputs: Any, cache: Any = None) -> Any:
            out = self.core(inputs, cache)
            return self.core.embed_tokens.as_linear(out) if self.args.tie_word_embeddings else self.lm_head(out)

    class Boxed(Module):
        use_sliding = False

        def __init__(self, inner: Any, *, last: bool = False) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # nor has this part of mlx
            self.inner, self.last = inner, last

        def __call__(self, x: Any, *args: Any, **named: Any) -> Any:
            out = self.inner(x[0] if isinstance(x, list) else x, *args, **named)
            return out if self.last else [out]

    class Doubling(llama.LlamaModel):  # type: ignore[misc]  # mlx-lm has no types
        @property
        def norm(self) -> Any:
            return lambda state: self.ending(2 * state)

    class Counting(RMSNorm):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x) * (1 + 0.02 * x.shape[1])  # type: ignore[no-untyped-call]  # as above

    own, _ = load_model(tiny_path("llama"))
    body, norm = own.model, own.model.norm
    if how == "no body":
        own.core = body
        del own.model
        own.__class__ = Renamed
    elif how == "no vectors":
        body.norm = Boxed(norm, last=True)
        body.layers = [Boxed(layer) for layer in body.layers]
    elif how == "another state":
        body.ending = norm
        del body.norm
        body.__class__ = Doubling
    elif how == "no norm":
        del body.norm
        body.norm = lambda state: norm(state)
    elif how == "a norm that counts":
        body.norm = Counting(norm.weight.size, norm.eps)
        body.norm.weight = norm.weight
    return own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "how", "why"),
    [
        ("hf", "two lists", "it has no single list of 3 layers"),
        ("mlx", "no body", "it is not made of a body and a head"),
        *[
            (backend, how, why)
            for backend in ("hf", "mlx")
            for how, why in {
                "no vectors": "what passes between its layers is not one vector for each token",
                "another state": "its final norm reads something else than what its last layer gave",
                "no norm": "nothing like a final norm follows its last layer",
                "a norm that counts": "nats off the model's own answer: the layers of this architecture cannot be read so",
            }.items()
        ],
    ],
)
def test_an_architecture_whose_layers_cannot_be_read_is_refused_with_the_reason(backend: str, how: str, why: str) -> None:
    from transformers import AutoTokenizer

    own = torch_made_otherwise(how) if backend == "hf" else mlx_made_otherwise(how)
    with load((own, AutoTokenizer.from_pretrained(tiny_path("llama"))), backend) as model:
        before = model.next_token_logprobs_sync(IDS)
        with pytest.raises(UnsupportedFeatureError, match=why):
            model.lens_sync(IDS)
        model.clear_cache()
        np.testing.assert_allclose(model.next_token_logprobs_sync(IDS), before, atol=1e-5)  # it answers as before
        assert settled(model)[1].leases == 0


def test_a_lens_is_exported_as_a_table_with_the_names_of_the_view() -> None:
    with load(tiny_path("llama"), "hf") as model:
        run = model.lens_sync(IDS, [38, 39], top_k=2)
        asked = model.lens_sync(IDS, [39], tokens=[7, 11])
    [*_, last] = asked.rows()
    assert last["asked_ids"] == [7, 11]
    assert last["asked_logprobs"] == pytest.approx(asked.logprobs[0, 3, 1:].tolist())
    assert last["asked_ranks"] == asked.ranks[0, 3, 1:].tolist()
    assert asked.to_arrow().column("asked_ranks").to_pylist()[3] == last["asked_ranks"]
    assert f"rank {last['asked_ranks'][1]:,}" in html.unescape(asked._repr_html_())
    rows = list(run.rows())
    assert "asked_ids" not in rows[0]
    assert [(row["after"], row["layer"]) for row in rows] == [(place, layer) for place in (38, 39) for layer in range(4)]
    assert (rows[3]["position"], rows[3]["token_id"], rows[3]["rank"]) == (39, IDS[39], run.ranks[0, 3, 0])
    assert rows[3]["logprob"] == pytest.approx(float(run.logprobs[0, 3, 0]))
    assert rows[3]["top_ids"] == run.top_ids[0, 3].tolist()
    assert rows[7]["position"] is rows[7]["token_id"] is rows[7]["logprob"] is rows[7]["rank"] is None  # nothing follows
    assert run.to_arrow().num_rows == 8
    # and in a notebook, tokens are shown by their texts, and bytes that are no character as bytes
    shown = html.unescape(run._repr_html_())
    tokens = [model.decode_token(int(token)) for token in run.top_ids[:, 3].ravel()]
    assert b"\xfd" in tokens
    assert all(("bytes FD " if token == b"\xfd" else repr(token.decode())) in shown for token in tokens), shown


@pytest.mark.parametrize("without", ["entropy", "top_ids", "positions"])
def test_a_malformed_answer_of_the_engine_is_refused_with_a_message(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    with load("x", "mock") as model:
        whole = model.lens_sync([1, 2, 3], [1]).to_columns()
        for columns in (
            {name: column for name, column in whole.items() if name != without},
            whole | {without: np.zeros(3, np.float32)},
        ):

            async def call(*_: object, columns: object = columns, **__: object) -> object:
                return columns

            monkeypatch.setattr(model.transport, "call", call)
            with pytest.raises(RuntimeFault, match="the engine's answer is no lens"):
                model.lens_sync([1, 2, 3], [1])
            monkeypatch.undo()
