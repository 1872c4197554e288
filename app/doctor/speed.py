"""Speed against the bare library on the same weights, and the cost of cached, branched and reopened texts."""

from __future__ import annotations

import asyncio
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from app.doctor.bare import ONE, Subject, lap, random_ids, seconds
from app.doctor.finding import Finding, held
from app.doctor.reference import SMOLLM2, references, write_reference
from resources.processes import child_command
from runtime import GenerationOptions, LanguageModel, list_models, load

LAPS, LAPS_SECONDS = 5, 40.0  # limits of the comparison; one lap always runs
SHARE_BAR: Final = 0.9  # of the bare library's tokens per second
STEP_BAR: Final = 1.0  # ms of a token beyond the bare library's, or what `SHARE_BAR` allows if that is more
REOPEN_BAR: Final = 0.2  # of the time of a cold start
FIRST_BAR: Final = 3.0  # time to the first token of a cached prompt, in the time of a decoded token
ADVICE: Final = "close other programs and run --only speed again; if it stays so, report it with this table"


def speed(backend: str) -> Iterator[Finding]:
    """Measures one model: the default one if it is on the shelf, else a small one."""
    there = next((entry for entry in list_models() if entry.name == SMOLLM2 and entry.complete), None)
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        if there is None:
            [llama] = [reference for reference in references() if reference.name == "llama"]
            folder = write_reference(Path(room) / "llama", llama)
        else:
            folder = there.path
        command = child_command("app.doctor.child", "bare", backend, str(folder))
        pipe = subprocess.PIPE
        # the library begins after the load, so that it has the huge pages that the load switches on
        with load(folder, backend) as model, subprocess.Popen(command, stdin=pipe, stdout=pipe) as library:
            which, needed = f"{model.info.name}, {model.info.dtype} on {model.info.device}", "elsewise models get smollm2"
            small = f"too small for bars on shares of time: {needed}"
            yield Finding("model", which, SMOLLM2, "ok" if there else "skipped", "" if there else small)
            theirs, ours = _in_turns(library, _own(model))
            for name, bare_rate in theirs.items():
                share = ours[name] / bare_rate
                shown = f"{ours[name]:,.0f} tokens/s, {share:.2f} of the bare library's {bare_rate:,.0f}"
                row = held(name, share, SHARE_BAR, shown, f">= {SHARE_BAR:g}", ADVICE, at_least=True)
                yield row if there else Finding(name, shown, row.bar, "skipped", small)
            step, most = 1e3 / ours[ONE] - 1e3 / theirs[ONE], max(STEP_BAR, (1 / SHARE_BAR - 1) * 1e3 / theirs[ONE])
            yield held("time of a token beside the bare library", step, most, f"{step:+.2f} ms", f"<= {most:.2f} ms", ADVICE)
            yield _first_token(model, random_ids(0), ours[ONE])
            yield _needed(model)
            yield _reopened(model, Path(room) / "kv", REOPEN_BAR if there else 2.0)


def _in_turns(library: subprocess.Popen[bytes], own: Subject) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second of the bare library and of ours: medians of laps, which alternate and never overlap."""
    assert library.stdin is not None
    assert library.stdout is not None
    theirs: list[dict[str, float]] = []
    ours: list[dict[str, float]] = []
    end = math.inf  # set after the first lap of the library, for which its process starts
    while len(ours) < LAPS and (not ours or time.monotonic() < end):
        library.stdin.write(b"\n")
        library.stdin.flush()
        line = library.stdout.readline()
        if not line:
            raise RuntimeError("the process of the bare library ended")
        if not theirs:
            end = time.monotonic() + LAPS_SECONDS
        theirs.append(msgspec.json.decode(line, type=dict[str, float]))
        ours.append(lap(own, len(ours)))
    first, second = ({name: median(each[name] for each in laps) for name in laps[0]} for laps in (theirs, ours))
    return first, second


def _greedy(new: int) -> GenerationOptions:
    return GenerationOptions(max_tokens=new, ignore_eos=True, top_k=0)


def _own(model: LanguageModel) -> Subject:
    def answer(prompts: list[list[int]], new: int) -> None:
        async def stream(prompt: list[int]) -> None:
            async for _ in model.generate(prompt, _greedy(new)):
                pass

        async def all_of_them() -> None:
            await asyncio.gather(*map(stream, prompts))

        asyncio.run(all_of_them())

    return answer, model.next_token_logprobs_sync


def _first_token(model: LanguageModel, prompt: list[int], rate: float) -> Finding:
    """The time to the first token after a prompt whose KV is cached, except that of its last token."""
    model.kv.cache_kv(prompt)

    def begin(tail: int) -> None:
        next(iter(model.generate_sync([*prompt, tail], _greedy(1))))

    least = min(seconds(partial(begin, tail)) for tail in range(3, 8))
    tokens = least * rate
    return held(
        "first token of a cached prompt",
        tokens,
        FIRST_BAR,
        f"{least * 1e3:.0f} ms, {tokens:.1f} tokens' time",
        f"<= {FIRST_BAR:g} tokens",
        ADVICE,
    )


def _needed(model: LanguageModel) -> Finding:
    """The tokens computed for a chat with a branch at each turn, against those needed."""
    model.clear_cache()
    before, path, needed = model.metrics().tokens_computed, random_ids(7, 100), 0
    for turn in range(4):
        path = [*path, *random_ids(200 + turn, 20)]
        model.next_token_logprobs_sync(path)
        branch = random_ids(300 + turn, 10)
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
    """The time to read the KV of a long text from a file, against computing it."""
    text = random_ids(11, 512)
    model.clear_cache()
    cold = seconds(lambda: model.next_token_logprobs_sync(text))
    model.kv.kv_snapshot(text, file)
    model.clear_cache()

    def reopen() -> None:
        model.kv.kv_restore(file)
        model.next_token_logprobs_sync(text)

    warm = seconds(reopen)
    return held(
        "reopening / cold start",
        warm / cold,
        bar,
        f"{warm / cold:.3f} ({warm * 1e3:.0f} ms) for {len(text):,} tokens",
        f"<= {bar:g}",
        ADVICE,
    )
