"""`elsewise serve`: its cost compared with the library, leases and memory left by many clients, queries through `connect`."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

import psutil

from benchmarks.clock import Lap, Stopwatch, Told, take_turns
from benchmarks.findings import Case, Findings, Timing, timings
from benchmarks.sizes import Sizes
from runtime import GenerationOptions, LanguageModel, connect, load, spawn

ROW = "remote"
LIBRARY, SERVED = "spawned, read by the library", "elsewise serve"
HERE, CONNECTED = "in this process", "connect to elsewise serve"
ASKING = (1, 64)  # concurrent clients, each with one query after the other
LIKELIEST = 20  # likeliest tokens that a query returns
STREAMS = 8
BAR_MS = 0.3  # CPU ms per streamed token beyond the library's
GROWTH_BAR = 5.0  # per cent
PATIENCE_SECONDS = 60.0
ANSWER_TOKENS = 24  # per client of a crowd


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running `elsewise serve`."""

    port: int
    process: psutil.Process

    def cpu(self) -> float:
        """CPU seconds of the server without its engine process."""
        times = self.process.cpu_times()
        return times.user + times.system

    def rss(self) -> int:
        """Resident bytes of the server and its engine process."""
        return sum(each.memory_info().rss for each in (self.process, *self.process.children()))


def remote(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Streams over HTTP and from a spawned engine; queries through `connect` and in process; crowds, half of which go away."""
    tell(f"{ROW}: loading")
    tokens = sizes.serve_tokens
    with asyncio.Runner() as runner, _server(case) as server:
        model = runner.run(spawn(case.folder, case.backend))
        try:
            contenders = {
                LIBRARY: lambda: runner.run(_read(model, tokens)),
                SERVED: lambda: runner.run(_streamed(server, tokens)),
            }
            laps = take_turns(contenders, sizes.rounds, tell, row=ROW)
        finally:
            runner.run(model.close_async())
        asked = _queries(case, server, runner, sizes, tell)
        tell(f"{ROW}: {sizes.serve_clients} clients, of which half go away")
        grown, leases = runner.run(_crowds(server, sizes.serve_clients))

    def ms(who: str) -> list[float]:
        return [lap.cpu_seconds / lap.tokens * 1000 for lap in laps[who]]

    added = median(served - library for served, library in zip(ms(SERVED), ms(LIBRARY), strict=True))
    verdict = partial(case.verdict, ROW)
    return Findings(
        timings=(*timings(ROW, case, laps), *asked),
        verdicts=(
            verdict("ms of a processor a streamed token, less the library's", added, BAR_MS),
            verdict(f"leases left by {sizes.serve_clients} clients, half of which went away", float(leases), 0.0, timed=False),
            verdict("per cent of memory that a third such crowd adds", grown, GROWTH_BAR),
        ),
    )


@contextmanager
def _server(case: Case) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "app", "serve", str(case.folder), "--backend", case.backend, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next((found[1] for line in process.stderr if (found := re.search(r"^serving .*:(\d+)/v1", line))), None)
        if port is None:
            raise OSError(f"elsewise serve ended with {process.wait()} while it loaded {case.folder.name}")
        yield ServerProcess(int(port), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.communicate()


def _prompt(place: int) -> list[int]:
    return [5, 6, 7 + place]


def _queries(case: Case, server: ServerProcess, runner: asyncio.Runner, sizes: Sizes, tell: Told) -> list[Timing]:
    """Times of queries through the server and of a model in this process; every context is new."""
    found: list[Timing] = []
    fresh = count()
    with load(case.folder, case.backend) as here:
        url = f"http://127.0.0.1:{server.port}"
        with connect(url, tokenizer=case.folder) as connected:
            models = {HERE: here, CONNECTED: connected}
            for clients in ASKING:
                row = f"{ROW}: a query, {clients} at a time"
                contenders = {
                    who: partial(_asked_by, runner, model, clients, sizes.serve_queries, fresh) for who, model in models.items()
                }
                laps = take_turns(contenders, sizes.rounds, tell, row=f"{ROW}, queries")
                found += timings(row, case, laps)
    return found


def _asked_by(runner: asyncio.Runner, model: LanguageModel, clients: int, queries: int, fresh: Iterator[int]) -> Lap:
    most = model.info.vocab_size - 10

    async def client() -> None:
        for _ in range(queries // clients):
            number = next(fresh)
            await model.top_logprobs([5, 6, 7, 8 + number // most, 8 + number % most], LIKELIEST)

    async def all_of_them() -> Lap:
        watch = Stopwatch().start()
        await asyncio.gather(*(client() for _ in range(clients)))
        return watch.lap(queries // clients * clients)

    return runner.run(all_of_them())


async def _read(model: LanguageModel, tokens: int) -> Lap:
    watch = Stopwatch().start()

    async def one(place: int) -> None:
        options = GenerationOptions(max_tokens=tokens, ignore_eos=True, seed=place, top_k=0)
        async with aclosing(model.generate_runs(_prompt(place), options)) as runs:
            async for _ in runs:
                pass

    await asyncio.gather(*(one(place) for place in range(STREAMS)))
    return watch.lap(STREAMS * tokens)


async def _streamed(server: ServerProcess, tokens: int) -> Lap:
    watch = Stopwatch(cpu=server.cpu).start()
    await asyncio.gather(*(_ask(server.port, place, tokens, leave=False) for place in range(STREAMS)))
    return watch.lap(STREAMS * tokens)


async def _ask(port: int, place: int, tokens: int, *, leave: bool) -> None:
    """Reads one stream to its end, or with `leave` closes the connection after the first event."""
    body = {"prompt": _prompt(place), "max_tokens": tokens, "ignore_eos": True, "seed": place, "stream": True}
    sent = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(sent)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + sent)
        last = b""
        async for line in reader:
            if line.startswith(b"data: "):
                last = line
                if leave:
                    return
        if last.strip() != b"data: [DONE]":
            raise OSError(f"a stream of the server ended with {last[:200]!r}")
    finally:
        writer.close()
        with suppress(OSError):  # the server may have closed it first
            await writer.wait_closed()


async def _crowds(server: ServerProcess, clients: int) -> tuple[float, int]:
    """Memory growth of a third crowd of clients in per cent, and the leases left after it.

    The first two crowds warm up: the largest batches, and so the size of their buffers, depend on timing.
    """
    sizes, leases = [], 0
    for _ in range(3):
        await asyncio.gather(*(_ask(server.port, place % 900, ANSWER_TOKENS, leave=place % 2 == 1) for place in range(clients)))
        leases = await _settled(server.port)
        sizes.append(server.rss())
    return (sizes[2] / sizes[1] - 1) * 100, leases


async def _settled(port: int) -> int:
    """Waits until no request runs; returns the number of leases."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await _ask(port, 0, 1, leave=False)  # a step updates the metrics
            figures = await _figures(port)
            if figures["vllm:num_requests_running"] == 0:
                return int(figures["elsewise:leases"])
            await asyncio.sleep(0.05)


async def _figures(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return {name: float(value) for name, value in re.findall(r"^([a-z_:]+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}
