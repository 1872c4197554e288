"""Speed beside the bare library on the same weights, and what is computed, reused and reopened."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.doctor.finding import Finding, held
from app.doctor.reference import SMOLLM2, references, write_reference
from runtime import GenerationOptions, LanguageModel, list_models, load

PROMPT, READ_TOKENS, NEW, STREAMS = 32, 128, 24, 8  # tokens before an answer, of a text that is only read, new ones; prompts
LAPS, LONG = 2, 5.0  # of what takes no more than so many seconds
SHARE_BAR: Final = 0.9  # of the bare library's tokens per second
STEP_BAR: Final = 1.0  # ms that a token takes beyond the bare library's, or what the share allows where that is more
REOPEN_BAR: Final = 0.2  # of a cold start
FIRST_BAR: Final = 3.0  # tokens' worth of time until the first token of a prompt that is in the cache
ADVICE: Final = "close other programs and run --only speed again; if it stays so, report it with this table"
# Answers to one prompt, to many at once (so many new tokens), and a prompt that is only read.
Bare = tuple[Callable[[list[int], int], None], Callable[[list[list[int]], int], None], Callable[[list[int]], None]]


def speed(backend: str) -> Iterator[Finding]:
    """Rows of one model: the default one where it is on the shelf, else a small one."""
    there = next((entry for entry in list_models() if entry.name == SMOLLM2 and entry.complete), None)
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        if there is None:
            [llama] = [reference for reference in references() if reference.name == "llama"]
            folder = write_reference(Path(room) / "llama", llama)
        else:
            folder = there.path
        prompts = [_ids(seed) for seed in range(STREAMS)]
        bare = _bare_mlx(folder) if backend == "mlx" else _bare_torch(folder)
        theirs = _laps(bare, prompts)
        del bare
        gc.collect()
        with load(folder, backend) as model:
            which, needed = f"{model.info.name}, {model.info.dtype} on {model.info.device}", "elsewise models get smollm2"
            small = f"too small for bars on shares of time: {needed}"
            yield Finding("model", which, SMOLLM2, "ok" if there else "skipped", "" if there else small)
            ours = _laps(_own(model), prompts)
            for name, bare_rate in theirs.items():
                share = ours[name] / bare_rate
                shown = f"{ours[name]:,.0f} tokens/s, {share:.2f} of the bare library's {bare_rate:,.0f}"
                row = held(name, share, SHARE_BAR, shown, f">= {SHARE_BAR:g}", ADVICE, at_least=True)
                yield row if there else Finding(name, shown, row.bar, "skipped", small)
            step, most = 1e3 / ours[ONE] - 1e3 / theirs[ONE], max(STEP_BAR, (1 / SHARE_BAR - 1) * 1e3 / theirs[ONE])
            yield held("time of a token beside the bare library", step, most, f"{step:+.2f} ms", f"<= {most:.2f} ms", ADVICE)
            yield _first_token(model, prompts[0], ours[ONE])
            yield _needed(model)
            yield _reopened(model, Path(room) / "kv", REOPEN_BAR if there else 2.0)


ONE, EIGHT, READ = "decode, one stream", "decode, eight streams", "prefill"


def _ids(seed: int, tokens: int = PROMPT) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 250, tokens).tolist()
    return ids


def _laps(subject: Bare, prompts: list[list[int]]) -> dict[str, float]:
    """Tokens per second of the best of some laps. Decoding: what a long answer takes beyond a short one."""
    one, many, read = subject
    found = {ONE: (NEW - 1) / _beyond(lambda new: one(prompts[0], new))}
    found[EIGHT] = len(prompts) * (NEW - 1) / _beyond(lambda new: many(prompts, new))
    read(_ids(99, READ_TOKENS))
    found[READ] = READ_TOKENS / _best(lambda lap: read(_ids(100 + lap, READ_TOKENS)))
    return found


def _beyond(answer: Callable[[int], None]) -> float:
    answer(2)
    return max(_best(lambda _: answer(NEW)) - _best(lambda _: answer(1)), 1e-6)


def _best(work: Callable[[int], object]) -> float:
    """Seconds of the fastest lap; one that is long stays alone."""
    best = _seconds(partial(work, 0))
    for lap in range(1, LAPS if best < LONG else 1):
        best = min(best, _seconds(partial(work, lap)))
    return best


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _greedy(new: int) -> GenerationOptions:
    return GenerationOptions(max_tokens=new, ignore_eos=True, top_k=0)


def _own(model: LanguageModel) -> Bare:
    def one(prompt: list[int], new: int) -> None:
        list(model.generate_sync(prompt, _greedy(new)))

    def many(prompts: list[list[int]], new: int) -> None:
        async def stream(prompt: list[int]) -> None:
            async for _ in model.generate(prompt, _greedy(new)):
                pass

        async def all_of_them() -> None:
            await asyncio.gather(*(stream(prompt) for prompt in prompts))

        asyncio.run(all_of_them())

    def read(prompt: list[int]) -> None:
        model.next_token_logprobs_sync(prompt)

    return one, many, read


def _bare_mlx(folder: Path) -> Bare:
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator, generate_step
    from mlx_lm.utils import load_model

    model: Any = load_model(folder)[0]

    def one(prompt: list[int], new: int) -> None:
        for _ in generate_step(mx.array(prompt), model, max_tokens=new):
            pass

    def many(prompts: list[list[int]], new: int) -> None:
        generator = BatchGenerator(model, max_tokens=new)
        generator.insert(prompts)
        while generator.next_generated():
            pass
        generator.close()

    def read(prompt: list[int]) -> None:
        mx.eval(model(mx.array([prompt]))[:, -1])

    return one, many, read


def _bare_torch(folder: Path) -> Bare:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).to(device).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def many(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts, device=device)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new)

    def read(prompt: list[int]) -> None:
        with torch.inference_mode():
            model(torch.tensor([prompt], device=device), logits_to_keep=1)

    return lambda prompt, new: many([prompt], new), many, read


def _first_token(model: LanguageModel, prompt: list[int], rate: float) -> Finding:
    """Of a prompt that is in the cache, but for its last token."""
    model.kv.cache_kv(prompt)

    def begin(tail: int) -> None:
        next(iter(model.generate_sync([*prompt, tail], _greedy(1))))

    seconds = min(_seconds(partial(begin, tail)) for tail in range(3, 8))
    tokens = seconds * rate
    return held(
        "first token of a cached prompt",
        tokens,
        FIRST_BAR,
        f"{seconds * 1e3:.0f} ms, {tokens:.1f} tokens' time",
        f"<= {FIRST_BAR:g} tokens",
        ADVICE,
    )


def _needed(model: LanguageModel) -> Finding:
    """A chat of turns that build on each other, with a branch at each."""
    model.clear_cache()
    before, path, needed = model.metrics().tokens_computed, _ids(7, 100), 0
    for turn in range(4):
        path = [*path, *_ids(200 + turn, 20)]
        model.next_token_logprobs_sync(path)
        branch = _ids(300 + turn, 10)
        model.next_token_logprobs_sync([*path[:-5], *branch])
        needed += 20 + len(branch)
    needed += 100
    computed = model.metrics().tokens_computed - before
    return held(
        "tokens computed",
        computed / needed,
        1.0,
        f"{computed:,} of {needed:,} needed",
        "no more than needed",
        "report it with this table",
    )


def _reopened(model: LanguageModel, file: Path, bar: float) -> Finding:
    """A long text whose keys and values come from a file, against computing them."""
    text = _ids(11, 512)
    model.clear_cache()
    cold = _seconds(lambda: model.next_token_logprobs_sync(text))
    model.kv.kv_snapshot(text, file)
    model.clear_cache()

    def reopen() -> None:
        model.kv.kv_restore(file)
        model.next_token_logprobs_sync(text)

    warm = _seconds(reopen)
    return held(
        "reopening / cold start",
        warm / cold,
        bar,
        f"{warm / cold:.3f} ({warm * 1e3:.0f} ms) for {len(text):,} tokens",
        f"<= {bar:g}",
        ADVICE,
    )
