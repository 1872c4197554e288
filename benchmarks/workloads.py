"""The workloads: W1 particles, W2 chat, W3 branches, W7 more chats than fit, W8 all at once, and a simulated cache."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import numpy as np

from benchmarks.measure import Ids, Subject, Workload
from runtime import GenerationOptions, LanguageModel, SamplingOptions

SPREAD = 2.0  # standard deviation of the random log-weights, in nats: a resampling drops about a third of the particles


def particles(vocabulary: int, *, count: int, steps: int, prompt: int, resample_every: int) -> Workload:
    """Sequential Monte Carlo as in steered generation: per step one batch query and a draw per particle, then resampling.

    Args:
        vocabulary: Token ids are drawn below this.
        count: Number of particles.
        steps: Tokens drawn per particle.
        prompt: Length of the prompt that all particles share.
        resample_every: Steps between two resamplings. Weights are random: only the pattern of copies matters here.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(1)
        stem = rng.integers(vocabulary, size=prompt).tolist()
        subject.logprobs([stem])  # first by itself, for caches that reuse only finished requests
        population = [list(stem) for _ in range(count)]
        for step in range(1, steps + 1):
            logprobs = subject.logprobs(population)
            for particle, row in zip(population, logprobs, strict=True):
                # The argmax of log-probabilities plus Gumbel noise is a draw from the distribution. It rarely depends on
                # the last bits, in which libraries differ; a search in cumulative probabilities would.
                drawn = rng.standard_exponential(vocabulary, np.float32)  # can round to 0
                noise = -np.log(np.maximum(drawn, np.finfo(np.float32).tiny))
                particle.append(int(np.argmax(row[:vocabulary] + noise)))
            if step % resample_every == 0:
                weights = np.exp(SPREAD * rng.standard_normal(count))
                chosen = rng.choice(count, size=count, p=weights / weights.sum())
                population = [list(population[i]) for i in chosen]

    return Workload("W1 particles", play)


ANSWER_SHARE = 5  # a fifth of the tokens of a turn is generated


def chat(vocabulary: int, *, turns: int, tokens: int) -> Workload:
    """A chat of `turns` turns and `tokens` tokens in all; a fifth of each turn is the answer."""

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(2)
        transcript: list[int] = []
        for turn in range(1, turns + 1):
            room = tokens * turn // turns - len(transcript)
            answer = room // ANSWER_SHARE
            transcript += rng.integers(vocabulary, size=room - answer).tolist()
            transcript += subject.answers([transcript], answer)[0]

    return Workload("W2 chat", play)


def branches(vocabulary: int, *, count: int, transcript: int, tokens: int) -> Workload:
    """Branches at random places of one transcript, in random order, requested at once.

    Args:
        vocabulary: Token ids are drawn below this.
        count: Number of branches.
        transcript: Length of the transcript; a branch replaces any token but the first.
        tokens: Tokens generated on each branch, after the replaced one.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(3)
        text = rng.integers(vocabulary, size=transcript).tolist()
        subject.logprobs([text])
        places = rng.permutation(np.arange(1, transcript))[:count].tolist()
        picked = [(text[at] + 1 + int(rng.integers(vocabulary - 1))) % vocabulary for at in places]  # never the original token
        subject.answers([[*text[:at], token] for at, token in zip(places, picked, strict=True)], tokens)

    return Workload("W3 branches", play)


STAY = 0.4  # probability that the next visit is to the same chat


def visits(vocabulary: int, *, chats: int, count: int, message: int, answer: int) -> Workload:
    """`count` visits to random chats: each adds a message of `message` tokens and an answer of `answer` tokens.

    All chats begin with the same `message` tokens, like those of one program with a system prompt.
    """

    def play(subject: Subject) -> None:
        rng = np.random.default_rng(7)
        system = rng.integers(vocabulary, size=message).tolist()
        transcripts = [list(system) for _ in range(chats)]
        at = 0
        for _ in range(count):
            at = at if rng.random() < STAY else int(rng.integers(chats))
            transcripts[at] += rng.integers(vocabulary, size=message).tolist()
            transcripts[at] += subject.answers([transcripts[at]], answer)[0]

    return Workload("W7 budget", play)


PARTICLES = 8
STEM, TURN, TEXT = 64, 48, 256  # tokens of the particles' prompt, of a chat's message, of a text to score
CHAT_TOKENS = 1500  # length at which a chat ends
STEPS = 16  # steps of the particles
BRANCHES = 4


class Everything:
    """A chat, particles, scores and branches that use one model at the same time.

    They choose tokens at random instead of sampling from the answers: the event loop then has no work but the library's.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._vocabulary = model.info.vocab_size
        self.finished = {"chat": 0, "particles": 0, "score": 0, "branches": 0}  # completed tasks of each kind

    async def run(self, seconds: float) -> None:
        """Repeats all tasks for `seconds`, then waits for the ones under way."""
        end = time.monotonic() + seconds
        tasks = {"chat": self._chat, "particles": self._particles, "score": self._score, "branches": self._branches}
        await asyncio.gather(*(self._repeat(name, task, end) for name, task in tasks.items()))

    async def _repeat(self, name: str, task: Callable[[np.random.Generator, float], Awaitable[None]], end: float) -> None:
        rng = np.random.default_rng(len(name))
        while time.monotonic() < end:
            await task(rng, end)
            self.finished[name] += 1

    async def _chat(self, rng: np.random.Generator, end: float) -> None:
        transcript: list[int] = []
        while len(transcript) < CHAT_TOKENS and time.monotonic() < end:
            transcript += self._tokens(rng, TURN)
            transcript += await self._answer(transcript, TURN // 2)

    async def _particles(self, rng: np.random.Generator, end: float) -> None:
        population = [self._tokens(rng, STEM)] * PARTICLES
        for _ in range(STEPS):
            await self._model.batch_next_token_logprobs(population)
            if time.monotonic() >= end:
                return
            population = [[*particle, *self._tokens(rng, 1)] for particle in population]

    async def _score(self, rng: np.random.Generator, _end: float) -> None:
        await self._model.score_run(self._tokens(rng, TEXT))

    async def _branches(self, rng: np.random.Generator, _end: float) -> None:
        text = self._tokens(rng, TEXT)
        await asyncio.gather(*(self._answer([*text, token], TURN // 2) for token in self._tokens(rng, BRANCHES)))

    async def _answer(self, prompt: Ids, n: int) -> list[int]:
        options = GenerationOptions(
            max_tokens=n, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, seed=0, resolve=False
        )
        answer: list[int] = []
        async with aclosing(self._model.generate_runs(prompt, options)) as runs:
            async for run in runs:
                answer += run.ids.tolist()
        return answer

    def _tokens(self, rng: np.random.Generator, n: int) -> list[int]:
        drawn: list[int] = rng.integers(self._vocabulary, size=n).tolist()
        return drawn


class TokenLru:
    """A simulated cache of at most `capacity` tokens: a trie that evicts its least recently used leaves."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._root = _Token(None, -1)
        self._held = 0
        self._clock = 0
        self._leaves: list[tuple[int, int, _Token]] = []  # by stamp; stale entries are skipped
        self._offers = 0

    def request(self, prompt: Ids, answer: Ids) -> int:
        """Adds a prompt and its answer; returns the tokens to compute. The answer's last token is never pushed."""
        self._clock += 1
        token, known = self._root, 0
        for each in prompt:
            child = token.children.get(each)
            if child is None:
                break
            token, known = child, known + 1
            token.stamp = self._clock
        path = [*prompt, *answer[:-1]]
        for each in path[known:]:
            token = self._follow(token, each)
        self._offer(token)
        self._evict()
        return len(path) - known

    def _follow(self, token: _Token, each: int) -> _Token:
        child = token.children.get(each)
        if child is None:
            child = token.children[each] = _Token(token, each)
            self._held += 1
        child.stamp = self._clock
        return child

    def _evict(self) -> None:
        while self._held > self._capacity:
            stamp, _, token = heapq.heappop(self._leaves)
            if token.children or token.stamp != stamp or token.parent is None:
                continue
            parent, token.parent = token.parent, None
            del parent.children[token.id]
            self._held -= 1
            if not parent.children and parent.parent is not None:
                self._offer(parent)

    def _offer(self, token: _Token) -> None:
        self._offers += 1
        heapq.heappush(self._leaves, (token.stamp, self._offers, token))


class _Token:
    """A node of the trie: one token after its prefix."""

    __slots__ = ("children", "id", "parent", "stamp")

    def __init__(self, parent: _Token | None, token: int) -> None:
        self.parent, self.id, self.stamp = parent, token, 0
        self.children: dict[int, _Token] = {}


def simulate(requests: Sequence[tuple[Ids, Ids]], capacity: int) -> int:
    """Number of tokens that all requests compute with a cache of `capacity` tokens."""
    cache = TokenLru(max(capacity, 0))
    return sum(cache.request(prompt, answer) for prompt, answer in requests)
