"""A CUDA device: waits of the host, bytes copied to the host, and speed compared with transformers.

The model is a Llama of 1.2 B parameters with random weights in bfloat16 and a vocabulary of 128,256, made on the device.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.clock import Told
from benchmarks.findings import BarVerdict, Case, Findings
from benchmarks.sizes import Sizes
from benchmarks.tiny import make_tiny
from runtime import LanguageModel, load

SIZES = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
TEXT, PROMPT, NEW, STREAMS, QUERIES, QUERY = 2048, 256, 64, 8, 64, 128  # lengths in tokens, and numbers of streams and queries
PEER_ROWS = 32


def gpu(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Measures on the first CUDA device; without one, there are no findings."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if not torch.cuda.is_available():
        tell("no CUDA device")
        return Findings()
    tell("gpu: loading")
    with torch.device("cuda"):
        torch.manual_seed(0)
        given, peer = (LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16).eval() for _ in range(2))
    peer.load_state_dict(given.state_dict(), assign=True)  # the same weights, without Elsewise's attention
    with tempfile.TemporaryDirectory() as folder:
        make_tiny("llama", Path(folder) / "llama")
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "llama")
    rng = np.random.default_rng(0)

    def texts(count: int, length: int) -> list[list[int]]:
        return [rng.integers(5, 128_000, length).tolist() for _ in range(count)]

    device = replace(case, backend="hf", model=torch.cuda.get_device_name(0))
    verdicts: list[BarVerdict] = []

    def found(what: str, figure: float, bar: float, *, timed: bool = False) -> None:
        verdicts.append(device.verdict("gpu", what, figure, bar, timed=timed))

    with closing(load((given, tokenizer), "hf", kv_cache_bytes=8 << 30)) as model:
        work: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {}  # work by Elsewise, by the peer; tokens
        (text,), streams, queries = texts(1, TEXT), texts(STREAMS, PROMPT), texts(QUERIES, QUERY)
        work["a text of 2,048 tokens scored"] = (lambda: model.score_sync(text), lambda: _score(peer, text), TEXT)
        work["one stream of 64 tokens"] = (lambda: _stream(model, streams[:1]), lambda: _generate(peer, streams[:1]), NEW)
        work["eight streams of 64 tokens"] = (lambda: _stream(model, streams), lambda: _generate(peer, streams), NEW * STREAMS)
        work["64 unrelated queries of 128 tokens"] = (
            lambda: model.batch_next_token_logprobs_sync(queries),
            lambda: _answer(peer, queries),
            QUERY * QUERIES,
        )
        ours = model.transport.engine.backend  # type: ignore[attr-defined]  # no public access
        for what, (act, other, tokens) in work.items():
            tell(f"gpu: {what}")
            model.clear_cache()
            before = ours.forwards
            with _waits() as waits, crossing("hf") as crossed:
                act()
            found(f"{what}: waits of the host / forwards", len(waits) / (ours.forwards - before), 1.0)
            if tokens == TEXT:
                found(f"{what}: host bytes per token", sum(crossed) / tokens, 2048.0)
            laps = []
            for _lap in range(max(sizes.rounds, 2)):
                model.clear_cache()
                mine = _seconds(act)
                laps.append(mine / _seconds(other))
            found(f"{what}: seconds / transformers", min(laps), 1.0, timed=True)
    return Findings(verdicts=tuple(verdicts))


def _seconds(act: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def _waits() -> Iterator[list[str]]:
    """Collects the places in `runtime` (file:line) at which torch warns that the host waits for the device."""
    import torch

    found: list[str] = []

    def hear(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            frames = [frame for frame in traceback.extract_stack() if "/runtime/" in frame.filename]
            found.extend(f"{frame.filename}:{frame.lineno}" for frame in frames[-1:])

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with mock.patch.object(warnings, "showwarning", hear):
                yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def crossing(backend: str) -> Iterator[list[int]]:
    """Collects the bytes of each array that the library copies to the host; it counts on a CPU as well."""
    owner: Any
    if backend == "hf":
        from torch import Tensor as Array

        owner, name = Array, "cpu"
    else:
        from mlx.core import array as Array  # noqa: N812  # its name for a class

        owner, name = np, "array"
    plain, found = getattr(owner, name), list[int]()

    def cross(given: Any, *args: Any, **named: Any) -> Any:
        if isinstance(given, Array):
            found.append(given.nbytes)
        return plain(given, *args, **named)

    with mock.patch.object(owner, name, cross):
        yield found


def _stream(model: LanguageModel, prompts: Sequence[list[int]]) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(model.sample(prompt, NEW, [], temperature=0.0) for prompt in prompts))

    asyncio.run(all_of_them())


def _generate(peer: Any, prompts: Sequence[list[int]]) -> None:
    import torch

    batch = torch.tensor(prompts, device="cuda")
    peer.generate(
        input_ids=batch, attention_mask=torch.ones_like(batch), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
    )


def _score(peer: Any, text: list[int]) -> None:
    import torch

    with torch.inference_mode():
        ids = torch.tensor([text], device="cuda")
        logprobs = torch.log_softmax(peer(input_ids=ids).logits[0].float(), -1)
        logprobs[:-1].gather(1, ids[0, 1:, None]).cpu()
        for part in logprobs.topk(10):
            part.cpu()


def _answer(peer: Any, queries: Sequence[list[int]]) -> None:
    import torch

    with torch.inference_mode():
        for at in range(0, len(queries), PEER_ROWS):
            ids = torch.tensor(queries[at : at + PEER_ROWS], device="cuda")
            torch.log_softmax(peer(input_ids=ids, logits_to_keep=1).logits[:, -1].float(), -1).cpu()
