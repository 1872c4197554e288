"""The parts of the benchmark and the models that each is run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings
from benchmarks.parts.bulk import bulk
from benchmarks.parts.decode import decode, embedded_model, many, overhead, rows, score, speculative
from benchmarks.parts.files import files, quantised
from benchmarks.parts.gpu import gpu
from benchmarks.parts.kv_store import store, swap, trie
from benchmarks.parts.pressure import pressure
from benchmarks.parts.remote import remote
from benchmarks.parts.reopen import reopen
from benchmarks.parts.sampler import grammar, sampler
from benchmarks.parts.shelf import shelf
from benchmarks.parts.token_counts import branches, budget, chat, particles
from benchmarks.parts.window import latency, start, view, window
from benchmarks.sizes import Sizes


class On(Enum):
    """The models that a part is run on."""

    ALL = "every model on every backend"
    TINY = "every tiny model on every backend"
    BACKENDS = "one model on every backend"
    ONCE = "no model"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the benchmark. `run` reports its progress through its last argument."""

    name: str  # what `--only` takes
    title: str
    on: On
    run: Callable[[Case, Sizes, Told], Findings]

    def meant_for(self, case: Case, cases: Sequence[Case], *, quick: bool) -> bool:
        """Whether the part is run on this one of the cases."""
        if self.on is On.ONCE or (self.on is On.TINY and not case.tiny):
            return False
        if quick and self.name in ONE_BACKEND:
            return case is cases[0]
        if quick or self.on is On.BACKENDS:
            return case is next(each for each in cases if each.backend == case.backend)
        return True


# parts that a quick run measures on the first case only
ONE_BACKEND = ("W4", "cpu", "rows", "kv", "pressure", "many", "W8", "swap", "grammar", "speculative", "remote", "window")
PARTS = (
    Part("W1", "particles: counts and cpu", On.ALL, particles),
    Part("W2", "chat: counts", On.ALL, chat),
    Part("W3", "branches: counts", On.ALL, branches),
    Part("W4", "a saved session in another process, SmolLM2", On.BACKENDS, reopen),
    Part("W5", "decode, one stream and eight", On.ALL, decode),
    Part("cpu", "decode on a processor, weights in fewer bits, SmolLM2", On.BACKENDS, embedded_model),
    Part("rows", "recurrent rows together", On.BACKENDS, rows),
    Part("overhead", "per-token overhead", On.TINY, overhead),
    Part("W6", "score a text", On.ALL, score),
    Part("bulk", "many texts: unrelated ones, a shared beginning", On.ALL, bulk),
    Part("W7", "chats under a byte budget", On.TINY, budget),
    Part("kv", "one store: bytes held, little memory, unrelated texts", On.TINY, store),
    Part("pressure", "chats that do not fit, unrelated streams and texts, many edges", On.BACKENDS, pressure),
    Part("many", "branches of one prompt, beams", On.ALL, many),
    Part("W8", "event-loop latency", On.BACKENDS, latency),
    Part("swap", "adapters that take turns: counts", On.BACKENDS, swap),
    Part("sampler", "sampler and records", On.ONCE, sampler),
    Part("grammar", "answers under a grammar", On.BACKENDS, grammar),
    Part("speculative", "prompt lookup against plain decoding, SmolLM2", On.BACKENDS, speculative),
    Part("remote", "the server: streams, clients that go away, queries through connect", On.BACKENDS, remote),
    Part("gpu", "a CUDA device: waits, what crosses, speed", On.ONCE, gpu),
    Part("trie", "the token trie alone", On.ONCE, trie),
    Part("shelf", "saved sessions: open, list, search; KV blocks", On.ONCE, shelf),
    Part("files", "files of models: a header of 10 GB, verifying", On.ONCE, files),
    Part("quantised", "a GGUF file that stays quantised, on hf: bytes, SmolLM2", On.ONCE, quantised),
    Part("view", "the window's transcript and list", On.ONCE, view),
    Part("window", "the whole window's event loop: a session opens, a prompt prefills", On.BACKENDS, window),
    Part("start", "from the process to the window", On.ONCE, start),
)
NAMES = tuple(part.name for part in PARTS)


def chosen_parts(names: tuple[str, ...]) -> tuple[Part, ...]:
    """The named parts in the order of the catalogue; all parts if no name is given."""
    return tuple(part for part in PARTS if not names or part.name in names)
