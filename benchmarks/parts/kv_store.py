"""The KV store: bytes held, tokens recomputed, unrelated texts in one call and one by one; the token trie; adapter swaps."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Limit
from benchmarks.measure import Float32, Ids
from benchmarks.ours import open_model
from benchmarks.sizes import Sizes
from benchmarks.tiny import make_tiny
from runtime import GenerationOptions, LanguageModel, Trie, Weight

ROW = "kv"
STEM, TURNS, MESSAGE, ANSWER = 2000, 20, 30, 30  # tokens of a chat
LAYERS = 24  # of the chat's model, as in real ones; with a token per byte, it holds mostly KV, few bytes of logits
PROMPTS, LENGTH = 192, 100  # unrelated texts
AGAIN, AGAIN_PROMPT, AGAIN_ANSWER = 24, 64, 80  # successive answers to one prompt; tokens of prompt and answer


def store(case: Case, sizes: Sizes, tell: Told) -> Findings:  # noqa: ARG001  # the same amounts in every run
    """Bytes held by a chat, tokens recomputed at a small budget, batches of unrelated prompts, repeated prompts."""
    rng = np.random.default_rng(0)

    def text(n: int, vocabulary: int = case.vocabulary) -> list[int]:
        return [int(token) for token in rng.integers(5, vocabulary - 5, n)]

    verdict = partial(case.verdict, ROW)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / case.model
        byte_text = partial(text, vocabulary=make_tiny(case.model.removeprefix("tiny-"), folder, layers=LAYERS))
        tell("kv: one chat")
        with closing(open_model(folder, case.backend)) as model:
            ids, held = _chat(model, byte_text, STEM, TURNS)
            chat_bytes = len(ids) * model.info.kv_bytes_per_token
            # the peak includes the allocator's copies of growing buffers, and cached logits and scores
            what = f"peak KV held / KV of the chat's tokens, {LAYERS} layers"
            verdicts = [verdict(what, held / chat_bytes, 1.10, timed=False)]
        tell("kv: one chat at 1.2 x its bytes")
        with closing(open_model(folder, case.backend, kv_cache_bytes=int(1.2 * chat_bytes))) as model:
            _answered(model, ids[:-1], 1)
            before = model.metrics().tokens_computed
            _answered(model, [*ids, *byte_text(MESSAGE)], ANSWER)
            computed = model.metrics().tokens_computed - before
            what = f"tokens of a turn at 1.2 x / new ones, {LAYERS} layers"
            verdicts.append(verdict(what, computed / (MESSAGE + ANSWER), 1.0, timed=False))
    tell("kv: unrelated prompts")
    texts = [text(LENGTH) for _ in range(PROMPTS)]
    with closing(open_model(case.folder, case.backend)) as model:
        model.batch_next_token_logprobs_sync([text(LENGTH) for _ in range(8)])

        def one_by_one() -> None:
            for each in texts:
                model.next_token_logprobs_sync(each)

        together = partial(model.batch_next_token_logprobs_sync, texts)
        laps = [(_seconds(model, one_by_one), _seconds(model, together)) for _ in range(2)]
        ratio = max(alone / batched for alone, batched in laps)
        verdicts.append(verdict("unrelated prompts, tokens/s: one call / one by one", ratio, 1.0, at_least=True))
        tell("kv: one prompt answered again and again")
        again = _again(model, text, AGAIN)
        verdicts.append(verdict("ms a token, later answers to one prompt / first ones to others", again, 1.05))
    return Findings(verdicts=tuple(verdicts))


def _again(model: LanguageModel, text: Callable[[int], list[int]], count: int) -> float:
    """Seconds per token of later answers to one prompt (the second half) over those of first answers to other prompts."""
    same, others = text(AGAIN_PROMPT), list[float]()
    again = list[float]()

    def answered(prompt: list[int], seed: int) -> float:
        times = list[float]()
        options = GenerationOptions(max_tokens=AGAIN_ANSWER, seed=seed, ignore_eos=True, resolve=False)
        for _ in model.generate_sync(prompt, options):
            times.append(time.perf_counter())
        return (times[-1] - times[0]) / (len(times) - 1)

    for seed in range(count):
        again.append(answered(same, seed))
        others.append(answered(text(AGAIN_PROMPT), seed))
    return median(again[count // 2 :]) / median(others[count // 2 :])


def _answered(model: LanguageModel, ids: list[int], count: int) -> list[int]:
    return list(asyncio.run(model.sample(ids, count, [], temperature=0.0)))


def _chat(model: LanguageModel, text: Callable[[int], list[int]], stem: int, turns: int) -> tuple[list[int], int]:
    """Plays a growing chat; returns its tokens and the peak bytes held."""
    ids = text(stem)
    for _ in range(turns):
        ids += text(MESSAGE)
        ids += _answered(model, ids, ANSWER)
    return ids, model.metrics().kv_peak_bytes


def _seconds(model: LanguageModel, act: Callable[[], Any]) -> float:
    model.clear_cache()
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


TRIE_ROW = "trie"
PATH_BAR_MS = 50.0
TOKEN_BYTES = 1024
ROOM = 1 << 40  # bytes: large enough that nothing is evicted by itself
NAMESPACE = "bench"
TRIE_STEM, TAIL = 1500, 8  # tokens
PLACES = 20  # positions of the stem at which branches leave it
FIRST_TAIL = 50_000  # lowest token id that begins a branch
RUN = 512  # tokens that a prefill inserts at a time
LEAST = "ms to copy those runs and compare them once, which a store that keeps and finds them must"


class _Weights:
    """Payload operations of the trie for payloads that are token counts."""

    def split(self, payload: int, n: int) -> tuple[int, int]:
        return n, payload - n

    def weigh(self, payload: int) -> Weight:
        return Weight(payload * TOKEN_BYTES, payload * TOKEN_BYTES, resumable=True)

    def owner(self, payload: int) -> None:
        """Every payload is a copy."""

    cut = split

    def extend(self, payload: int, more: int) -> bool:  # noqa: ARG002  # no payload can grow in place
        return False

    def hold(self, payload: int, node: object) -> None:
        """Nothing is shared."""

    def release(self, payload: int) -> None:
        """Nothing is shared."""


def trie(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Inserts, finds and evicts one long path; counts the bytes of many branches of one stem."""
    tell(TRIE_ROW)
    ids = np.random.default_rng(9).integers(FIRST_TAIL, size=sizes.trie_path).astype(np.int32)
    laps = [(_long_path(ids), _copied(ids)) for _ in range(5)]
    path_ms, least_ms = (median(seconds) * 1000 for seconds in zip(*laps, strict=True))
    held, needed = _branches(sizes.trie_branches)
    what = f"ms: insert, lookup, evict {sizes.trie_path:,} tokens"
    weight = f"bytes / (stem + tails) of {sizes.trie_branches:,} branches"
    verdicts = (
        case.verdict(TRIE_ROW, what, path_ms, PATH_BAR_MS, limit=Limit(least_ms, LEAST)),
        case.verdict(TRIE_ROW, weight, held / needed, 1.0, timed=False),
    )
    return Findings(verdicts=verdicts)


def _copied(ids: npt.NDArray[np.int32]) -> float:
    """Seconds to copy the runs of a path and to compare each once."""
    started = time.perf_counter()
    kept = [ids[start : start + RUN].copy() for start in range(0, len(ids), RUN)]
    same = [np.array_equal(run, ids[i * RUN : (i + 1) * RUN]) for i, run in enumerate(kept)]
    seconds = time.perf_counter() - started
    if not all(same):
        raise ValueError("a copy differs from what it was made of")
    return seconds


def _long_path(ids: npt.NDArray[np.int32]) -> float:
    """Seconds to insert a path in runs like a prefill, to look up all but its last token, and to evict it."""
    tokens = len(ids)
    started = time.perf_counter()
    tree = Trie(_Weights(), ROOM)
    with tree.lookup([(NAMESPACE, ids)]) as lease:
        for start in range(0, tokens, RUN):
            run = ids[start : start + RUN]
            tree.insert(lease, NAMESPACE, run, len(run))
    with tree.lookup([(NAMESPACE, ids[:-1])]) as lease:
        found = lease.length
    tree.evict(tree.bytes)
    seconds = time.perf_counter() - started
    if found != tokens - 1 or tree.bytes:
        raise ValueError(f"the trie found {found:,} of {tokens - 1:,} tokens and kept {tree.bytes:,} bytes of what was evicted")
    return seconds


def _branches(count: int) -> tuple[int, int]:
    """For branches that leave a stem at several places: bytes held, and bytes of the stem and all tails once each."""
    rng = np.random.default_rng(10)
    stem = rng.integers(FIRST_TAIL, size=TRIE_STEM).astype(np.int32)
    places = rng.choice(np.arange(1, TRIE_STEM + 1), size=PLACES, replace=False).tolist()
    tree = Trie(_Weights(), ROOM)
    with tree.lookup([(NAMESPACE, stem)]) as lease:
        tree.insert(lease, NAMESPACE, stem, TRIE_STEM)
    for branch in range(count):
        tail = np.array([FIRST_TAIL + branch, *range(TAIL - 1)], np.int32)  # first tokens all differ
        with tree.lookup([(NAMESPACE, stem[: places[branch % PLACES]])]) as lease:
            tree.insert(lease, NAMESPACE, tail, TAIL)
    return tree.bytes, (TRIE_STEM + count * TAIL) * TOKEN_BYTES


SWAP_ROW = "adapter swap"
RANK = 4
MODULES = ("q_proj", "v_proj")
SWAP_TURNS = 4  # turns per stack, each with one new token


def swap(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """The base, two adapters and both together take turns; each continues the prompt that it has computed once.

    The bar is exact: each turn computes only its one new token, whichever stack was active before.
    """
    prompt: Ids = np.random.default_rng(9).integers(case.vocabulary, size=sizes.transcript).tolist()
    tell(f"{SWAP_ROW}: loading")
    with tempfile.TemporaryDirectory() as made, closing(open_model(case.folder, case.backend)) as model:
        for seed, name in enumerate(("A", "B")):
            model.load_adapter(model.add_adapter(write_adapter(case.folder, Path(made) / name, seed)))
        stacks: Sequence[Sequence[str]] = ((), ("A",), ("B",), ("A", "B"))
        tell(f"{SWAP_ROW}: {len(stacks)} stacks by turns")
        for stack in stacks:
            _ask(model, stack, prompt)
        before = model.metrics().tokens_computed
        for turn in range(SWAP_TURNS):
            for stack in stacks:
                _ask(model, stack, [*prompt, *range(turn + 1)])
        again = model.metrics().tokens_computed - before - SWAP_TURNS * len(stacks)
    what = f"tokens of {len(stacks)} cached prefixes computed again in {SWAP_TURNS * len(stacks)} swaps"
    return Findings(verdicts=(case.verdict(SWAP_ROW, what, again, 0.0, timed=False),))


def _ask(model: LanguageModel, stack: Sequence[str], ids: Ids) -> Float32:
    """Makes `stack` the active adapters, then queries the distribution after `ids`."""
    model.clear_loras()
    for name in stack:
        model.push_lora(name)
    return model.next_token_logprobs_sync(ids)


def write_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Writes a random adapter in peft's layout for a llama-like model; returns its folder."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    outer = {"q_proj": heads * width, "v_proj": config["num_key_value_heads"] * width}
    rng = np.random.default_rng(seed)
    tensors: dict[str, Float32] = {}
    for layer in range(config["num_hidden_layers"]):
        for module in MODULES:
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{path}.lora_A.weight"] = rng.normal(size=(RANK, hidden)).astype(np.float32) / np.float32(hidden**0.5)
            tensors[f"{path}.lora_B.weight"] = rng.normal(size=(outer[module], RANK)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK}), "utf-8")
    return folder
