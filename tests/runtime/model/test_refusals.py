"""Bad input, each kind on both backends and over the pipe: a typed error before anything is computed, and no change."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime import (
    AdapterError,
    BeamOptions,
    GenerationOptions,
    Grammar,
    GrammarError,
    InvalidRequestError,
    LanguageModel,
    SamplingOptions,
    Session,
    load,
    spawn,
)
from tests.tiny_models import VOCABULARY, tiny_path

PROMPT = [5, 6, 7]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
Ask = Callable[[LanguageModel, Path], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad call, and the error that it must raise."""

    ask: Ask
    error: type[Exception]
    says: str


# ---- the entry points -------------------------------------------------------------------------------------------------


def one(**options: Any) -> Ask:
    """A stream with these options."""
    return lambda model, _: anext(model.generate(PROMPT, GenerationOptions(**options)))


def branches(**options: Any) -> Ask:
    return lambda model, _: anext(model.continue_many(PROMPT, 3, GenerationOptions(**options)))


def batch(**options: Any) -> Ask:
    """The second of two prompts is the bad one."""
    return lambda model, _: anext(model.generate_many([PROMPT, PROMPT], [None, GenerationOptions(**options)]))


def blocking(**options: Any) -> Ask:
    """A synchronous stream, in another thread."""
    return lambda model, _: asyncio.to_thread(lambda: next(iter(model.generate_sync(PROMPT, GenerationOptions(**options)))))


def session(**options: Any) -> Ask:
    """The next answer in a session that holds `PROMPT`."""
    return lambda model, _: anext(SESSIONS[id(model)].decode(GenerationOptions(**options)))


def session_blocking(**options: Any) -> Ask:
    return lambda model, _: asyncio.to_thread(lambda: next(iter(SESSIONS[id(model)].decode_sync(GenerationOptions(**options)))))


def forked(**options: Any) -> Ask:
    """The next answer in a fork of that session."""

    async def ask(model: LanguageModel, _: Path) -> None:
        with SESSIONS[id(model)].fork() as fork:
            await anext(fork.decode(GenerationOptions(**options)))

    return ask


def text(**options: Any) -> Ask:
    return lambda model, _: model.complete("a", GenerationOptions(**options))


def beams(**options: Any) -> Ask:
    return lambda model, _: model.beam_generate(PROMPT, BeamOptions(**options))


def ids(temperature: float) -> Ask:
    return lambda model, _: model.sample(PROMPT, 3, [], temperature)


def several(temperature: float) -> Ask:
    return lambda model, _: model.batch_sample([PROMPT, PROMPT], 3, [], temperature)


def vectors_blocking(*texts: str) -> Ask:
    return lambda model, _: asyncio.to_thread(lambda: model.embed_sync(list(texts)))


def vectors(*texts: str) -> Ask:
    return lambda model, _: model.embed(list(texts))


def adapter(kind: str) -> Ask:
    return lambda model, root: model.add_adapter_async(root / kind)


SESSIONS: dict[int, Session] = {}  # by the model's id: one that has `PROMPT` in it
WAYS: dict[str, Callable[..., Ask]] = {
    "generate": one,
    "generate_sync": blocking,
    "branches": branches,
    "batch": batch,
    "complete": text,
    "session": session,
    "session, blocking": session_blocking,
    "session, forked": forked,
}
OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a negative temperature": ({"sampling": SamplingOptions(temperature=-0.5)}, InvalidRequestError, "temperature .*-0.5"),
    "a temperature that is no number": (
        {"sampling": SamplingOptions(temperature=math.nan)},
        InvalidRequestError,
        "temperature .*nan",
    ),
    "a top_p of 0": ({"sampling": SamplingOptions(top_p=0.0)}, InvalidRequestError, "top_p .*0"),
    "a top_p above 1": ({"sampling": SamplingOptions(top_p=1.5)}, InvalidRequestError, "top_p .*1.5"),
    "a top_p that is no number": ({"sampling": SamplingOptions(top_p=math.nan)}, InvalidRequestError, "top_p .*nan"),
    "everything banned": (
        {"sampling": SamplingOptions(banned_tokens=tuple(range(VOCABULARY)))},
        InvalidRequestError,
        "banned|nothing .* left",
    ),
    "everything banned that the grammar allows": (
        {"grammar": Grammar.regex("é"), "sampling": SamplingOptions(banned_tokens=tuple(range(3, VOCABULARY)))},
        GrammarError,
        "that the grammar allows as the first are banned",
    ),
    "a stop string of length 0": ({"stop": ("END", "")}, InvalidRequestError, "none of them empty"),
    "a grammar that allows nothing": ({"grammar": Grammar.regex(r"[^\s\S]")}, GrammarError, "allows nothing"),
    "a grammar that cannot be read": ({"grammar": Grammar.regex("(")}, GrammarError, "unclosed group"),
}
BAD: dict[str, Bad] = {
    **{
        f"{kind}: {way}": Bad(WAYS[way](**options), error, says)
        for kind, (options, error, says) in OPTIONS.items()
        for way in WAYS
    },
    "a negative temperature: sample": Bad(ids(-0.5), InvalidRequestError, "temperature"),
    "a negative temperature: batch_sample": Bad(several(-0.5), InvalidRequestError, "temperature"),
    "a temperature that is no number: batch_sample": Bad(several(math.nan), InvalidRequestError, "temperature"),
    "a temperature that is no number: sample": Bad(ids(math.nan), InvalidRequestError, "temperature"),
    "a stop string of length 0: beams": Bad(beams(stop=("",)), InvalidRequestError, "none of them empty"),
    "a grammar that allows nothing: beams": Bad(beams(grammar=Grammar.regex(r"[^\s\S]")), GrammarError, "allows nothing"),
    "beams wider than the vocabulary": Bad(
        beams(width=VOCABULARY + 1), InvalidRequestError, r"1,001 beams are wider than the vocabulary of 1,000"
    ),
    "embeddings of an empty text": Bad(vectors("one", ""), InvalidRequestError, r"texts\[1\] is empty, of 2"),
    "embeddings of an empty text, blocking": Bad(
        vectors_blocking("", "one"), InvalidRequestError, r"texts\[0\] is empty, of 2"
    ),
    "embeddings of no text": Bad(vectors(), InvalidRequestError, "no texts: give at least one"),
    "an adapter of the wrong shape": Bad(adapter("shape"), AdapterError, "q_proj is 65 -> 64 .* 64 -> 64 in the model"),
    "an adapter for another base": Bad(adapter("base"), AdapterError, "made for org/SomethingElse-7B"),
    "an adapter for more layers": Bad(adapter("layers"), AdapterError, "layers.9.*another base"),
    "a pickle instead of safetensors": Bad(adapter("pickle"), AdapterError, "pickle|safetensors"),
    "a pickle that is called safetensors": Bad(adapter("disguised"), AdapterError, "safetensors"),
}


# ---- the models --------------------------------------------------------------------------------------------------------


class Bomb:
    """Creates a file if it is ever unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))

    def __init__(self, path: Path) -> None:
        self.path = str(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of adapters that cannot be used, named by their fault."""
    root = tmp_path_factory.mktemp("bad")
    plain = {f"{Q}.lora_A.weight": np.ones((4, 64), np.float32), f"{Q}.lora_B.weight": np.ones((64, 4), np.float32)}
    wide = {**plain, f"{Q}.lora_A.weight": np.ones((4, 65), np.float32)}
    deep = {name.replace("layers.0", "layers.9"): array for name, array in plain.items()}
    for kind, tensors in {"shape": wide, "base": plain, "layers": deep, "pickle": None, "disguised": None}.items():
        folder = root / kind
        folder.mkdir()
        base = "org/SomethingElse-7B" if kind == "base" else None
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": base}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        if tensors is None:
            name = "adapter_model.bin" if kind == "pickle" else "adapter_model.safetensors"
            (folder / name).write_bytes(pickle.dumps(Bomb(root / "it went off")))
        else:
            save_file(tensors, folder / "adapter_model.safetensors")
    return root


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=["hf", "mlx", "pipe"])
def model(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[LanguageModel]:
    if request.param == "pipe":
        made: LanguageModel = runner.run(spawn(tiny_path("llama"), "mlx", threads=1))
    else:
        made = load(tiny_path("llama"), request.param, threads=1)
    with made, made.open_session() as session:
        session.ensure_prefix_sync(PROMPT)
        session.logprobs_sync()
        before = made.next_token_logprobs_sync(PROMPT)
        SESSIONS[id(made)] = session
        yield made
        del SESSIONS[id(made)]
        assert session.ids == PROMPT
        np.testing.assert_array_equal(made.next_token_logprobs_sync(PROMPT), before)


def state(model: LanguageModel) -> dict[str, Any]:
    """The state that a refusal must not change."""
    for _ in range(2):  # cancelled requests have ended, and the reports include them
        model.prefix_match([1])
    metrics, report, info = model.metrics(), model.cache_report(), model.info
    return {
        "computed": metrics.tokens_computed,
        "generated": metrics.tokens_generated,
        "forwards": metrics.forward_calls,
        "leases": report.leases,
        "leased": report.leased_bytes,
        "adapters": info.adapters,
        "stack": model.lora_stack,
        "held": model.prefix_match(PROMPT),
        "session": SESSIONS[id(model)].ids,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_compute_and_changes_nothing(
    model: LanguageModel, runner: asyncio.Runner, root: Path, name: str
) -> None:
    bad, before = BAD[name], state(model)

    async def ask() -> None:
        await bad.ask(model, root)

    with pytest.raises(bad.error, match=f"(?s){bad.says}"):
        runner.run(ask())
    assert state(model) == before
    assert not (root / "it went off").exists()


def spoilt_vocabulary(folder: Path) -> str:
    """The tiny llama with another vocabulary."""
    shutil.copytree(tiny_path("llama"), folder)
    tokenizer = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tokenizer.replace("<|im_start|>", "<|im_begin|>"))
    return str(folder)


SAYS = r"draft_model 'other' has another vocabulary than 'tiny-llama': id 1 is b'<\|im_begin\|>'"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_draft_model_of_another_vocabulary_is_refused_at_load(backend: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=SAYS):
        load(tiny_path("llama"), backend, draft_model=spoilt_vocabulary(tmp_path / "other"))


@pytest.mark.slow
def test_a_draft_model_of_another_vocabulary_is_refused_over_the_pipe(tmp_path: Path, runner: asyncio.Runner) -> None:
    with pytest.raises(InvalidRequestError, match=SAYS):
        runner.run(spawn(tiny_path("llama"), "mlx", draft_model=spoilt_vocabulary(tmp_path / "other")))
