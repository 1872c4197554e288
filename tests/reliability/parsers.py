"""The parsers of all external inputs, and the child process that feeds them mutants (see `mutants`).

Each takes undamaged samples to mutate, and returns a function that reads a mutant: it returns, or raises one of `TYPED`.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import InvalidRequestError, RuntimeFault
from storage import StoreError
from tests.reliability.mutants import CPU_SECONDS, MEMORY_BYTES, MUTATORS

TYPED = (RuntimeFault, StoreError)
Read = Callable[[int, bytes], str]  # the number of the sample, and its mutant; the kind as which it was read
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True)
class Parser:
    """One kind of input.

    Attributes:
        samples: Makes undamaged ones, once for each row.
        opens: Makes the function that reads mutants, in a child; gets a folder of its own.
        mutator: Key of `MUTATORS`; of several samples one each may be given.
    """

    samples: Callable[[Path], Sequence[bytes]]
    opens: Callable[[Path, Sequence[bytes]], Read]
    mutator: str | tuple[str, ...] = "json"


# ---- models -------------------------------------------------------------------------------------------------------------


def gguf_samples(folder: Path) -> list[bytes]:
    """Byte-level BPE in plain layers, and SentencePiece's in layers with windows, caps and shifted norms."""
    from tests.runtime.loading.as_gguf import as_gguf
    from tests.runtime.loading.gguf_files import small_llama
    from tests.runtime.loading.pieces import gemma_pieces
    from tests.runtime.loading.test_families import made

    made("gemma3", folder / "gemma3")
    return [
        small_llama().pack(),
        as_gguf(folder / "gemma3", folder / "tiny.gguf", vocabulary=gemma_pieces().pairs()).read_bytes(),
    ]


def open_gguf(folder: Path, samples: Sequence[bytes]) -> Read:
    """Converts the file; accepted files keep their tensors in place, and no native parser crashes on them."""
    import mlx.core as mx
    from safetensors.numpy import load_file

    from runtime.loading.gguf.convert import check_gguf, convert
    from runtime.loading.gguf.header import read_header

    path, target = folder / "mutant.gguf", folder / "converted"
    sound = []
    for sample in samples:
        path.write_bytes(sample)
        sound.append(read_header(path).tensors)

    def read(number: int, data: bytes) -> str:
        path.write_bytes(data)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        convert(check_gguf(path), target, lambda done, total: None)
        assert read_header(path).tensors == sound[number]
        info = sound[number]["token_embd.weight"]
        stored = np.frombuffer(data, "<f4", info.values, info.offset).reshape(info.shape)
        np.testing.assert_array_equal(load_file(target / "model.safetensors")["model.embed_tokens.weight"], stored)
        with suppress(RuntimeError, ValueError):
            mx.eval(list(mx.load(str(path)).values()))  # type: ignore[union-attr]  # a dictionary of arrays
        return "taken as it is"

    return read


def tiny(name: str, file: str) -> bytes:
    """A file of a tiny model."""
    from tests.tiny_models import tiny_path

    return (tiny_path(name) / file).read_bytes()


def open_safetensors(folder: Path, _: Sequence[bytes]) -> Read:
    """Checks the file; native parsers read accepted files."""
    import mlx.core as mx
    from safetensors.torch import load_file

    from runtime.loading.safetensors import check_safetensors

    path = folder / "mutant.safetensors"

    def read(_: int, data: bytes) -> str:
        path.write_bytes(data)
        check_safetensors(path)
        mx.eval(list(mx.load(str(path)).values()))  # type: ignore[union-attr]  # a dictionary of arrays
        load_file(path)
        return "taken as it is"

    return read


ARCHITECTURES = ("llama", "gemma3", "lfm2", "gpt2", "qwen3", "mistral", "mamba")


def open_config(backend: str) -> Callable[[Path, Sequence[bytes]], Read]:
    """Loads a tiny model with the mutant; if it loads, its log-probabilities are finite."""

    def opens(folder: Path, samples: Sequence[bytes]) -> Read:
        from runtime import load
        from tests.tiny_models import tiny_path

        copies = [Path(shutil.copytree(tiny_path(name), folder / name)) for name in ARCHITECTURES[: len(samples)]]

        def read(number: int, data: bytes) -> str:
            (copies[number] / "config.json").write_bytes(data)
            with load(copies[number], backend=backend, threads=1) as model:
                row = model.next_token_logprobs_sync([5, 6, 7])
                assert abs(float(np.exp(row.astype(np.float64)).sum()) - 1) < 1e-3, "its answer is no distribution"
            return "loaded"

        return read

    return opens


def open_text(file: str) -> Callable[[Path, Sequence[bytes]], Read]:
    """Loads a tiny model with the mutant as one of its text files, and uses its text."""

    def opens(folder: Path, _: Sequence[bytes]) -> Read:
        from runtime import load
        from runtime.options.generation import GenerationOptions
        from tests.tiny_models import tiny_path

        copy = Path(shutil.copytree(tiny_path("llama"), folder / "llama"))

        def read(_: int, data: bytes) -> str:
            (copy / file).write_bytes(data)
            with load(copy, backend="mlx", threads=1) as model:
                model.detokenize(model.tokenize("Where should we go? 日本 <|im_start|>"))
                model.render_chat(HELLO)
                list(model.generate_sync([1, 2, 3], GenerationOptions(max_tokens=2)))
            return "loaded"

        return read

    return opens


def generation_samples(_: Path) -> list[bytes]:
    """A generation_config.json."""
    plain = {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.7, "top_p": 0.9, "top_k": 40}
    more = {"do_sample": True, "repetition_penalty": 1.1, "max_new_tokens": 50, "max_length": 100, "suppress_tokens": [5]}
    return [json.dumps(plain).encode(), json.dumps(plain | more).encode()]


def adapter_samples(folder: Path) -> list[bytes]:
    """Settings and weights that peft wrote."""
    from tests.runtime.adapters.makers import save_adapter

    made = save_adapter(folder / "made", "llama", seed=1)
    return [(made / "adapter_config.json").read_bytes(), (made / "adapter_model.safetensors").read_bytes()]


def open_adapter(folder: Path, samples: Sequence[bytes]) -> Read:
    """Adds it to a model; the base's numbers are the same afterwards, to the bit."""
    from runtime import load
    from tests.tiny_models import tiny_path

    path = folder / "adapter"
    path.mkdir(exist_ok=True)
    files = ("adapter_config.json", "adapter_model.safetensors")
    model = load(tiny_path("llama"), backend="hf", threads=1)
    base = model.next_token_logprobs_uncached([5, 6, 7])

    def read(number: int, data: bytes) -> str:
        for at, file in enumerate(files):
            (path / file).write_bytes(data if at == number else samples[at])
        name = model.add_adapter(path)
        try:
            model.load_adapter(name)
            row = model.next_token_logprobs_sync([5, 6, 7], adapters=[(name, 1.0)])
            assert abs(float(np.exp(row.astype(np.float64)).sum()) - 1) < 1e-3, "its answer is no distribution"
        finally:
            with suppress(RuntimeFault):
                model.unload_adapter(name)
            np.testing.assert_array_equal(model.next_token_logprobs_uncached([5, 6, 7]), base)
        return "put on"

    return read


# ---- templates and grammars ----------------------------------------------------------------------------------------------


def open_template(_: Path, __: Sequence[bytes]) -> Read:
    """Renders a chat with the template."""
    from runtime.text.template import ChatTemplate

    def read(_: int, data: bytes) -> str:
        template = ChatTemplate(data.decode(errors="replace"), {"bos_token": "<s>", "eos_token": "</s>"})
        try:
            template.render(HELLO)
        finally:
            template.close()
        return "rendered"

    return read


def template_samples(_: Path) -> list[bytes]:
    """The well-known formats."""
    from tests.runtime.text.template_texts import ALL

    return [text.encode() for text in ALL.values()]


def grammar_samples(kind: str) -> Callable[[Path], list[bytes]]:
    """Grammars of one kind."""

    def samples(_: Path) -> list[bytes]:
        from tests.runtime.grammar.samples import ALL, TWICE, Parcel

        found = [ALL[kind].source.encode()]
        if kind == "json":
            found += [json.dumps(TWICE).encode(), json.dumps(Parcel.model_json_schema()).encode()]
        return found

    return samples


def open_grammar(kind: Any) -> Callable[[Path, Sequence[bytes]], Read]:
    """Generates an answer under the grammar."""

    def opens(_: Path, __: Sequence[bytes]) -> Read:
        from runtime import load
        from runtime.grammar.source import Grammar
        from runtime.options.generation import GenerationOptions

        model = load("x", backend="fake")

        def read(_: int, data: bytes) -> str:
            make = {"json": Grammar.json_schema, "regex": Grammar.regex, "lark": Grammar.lark}[kind]
            grammar = make(data.decode(errors="replace"))
            list(model.generate_sync([1, 2, 3], GenerationOptions(max_tokens=6, grammar=grammar, seed=1)))
            return "answered"

        return read

    return opens


# ---- sessions -----------------------------------------------------------------------------------------------------------


def transfer_samples(*kinds: str) -> Callable[[Path], list[bytes]]:
    """Files of a session with branches."""

    def samples(folder: Path) -> list[bytes]:
        from tests.storage.helpers import with_store
        from tests.storage.transfer.trees import as_json, as_portable, branching

        source, made = folder / "source.sqlite3", []
        session = with_store(source, branching)
        for kind in kinds:
            file = folder / f"made.{kind}"
            {"json": as_json, "elsewise": as_portable}[kind](source, session, file)
            made.append(file.read_bytes())
        if "json" in kinds:
            made.append(json.dumps([*HELLO, {"role": "assistant", "content": "Yes"}]).encode())
        return made

    return samples


def open_transfer(suffix: str) -> Callable[[Path, Sequence[bytes]], Read]:
    """Imports the file into a store; a refused file changes nothing, an accepted one is undamaged as a whole."""

    def opens(folder: Path, _: Sequence[bytes]) -> Read:
        from tests.storage.helpers import chat, with_store
        from tests.storage.transfer.trees import leftovers, taken

        file, empty, store = folder / f"mutant.{suffix}", folder / "empty.sqlite3", folder / "store.sqlite3"
        with_store(empty, chat)
        before = leftovers(empty)

        def read(_: int, data: bytes) -> str:
            file.write_bytes(data)
            shutil.copyfile(empty, store)
            try:
                taken(store, file)
            except StoreError:
                assert leftovers(store) == before, "a refused import has left something"
                raise
            assert with_store(store, lambda opened: opened.verify()) == []
            return "imported"

        return read

    return opens


def sessions_samples(folder: Path) -> list[bytes]:
    """A sessions file."""
    from tests.reliability.damage import fill
    from tests.storage.helpers import with_store

    path = folder / "sessions.sqlite3"
    with_store(path, fill)
    return [path.read_bytes()]


def open_sessions(folder: Path, samples: Sequence[bytes]) -> Read:
    """Opens the file as the app does; visible contents are unchanged, or the damage is named."""
    import asyncio

    from storage import SessionStore
    from tests.reliability.damage import everything, judge
    from tests.storage.helpers import with_store

    original = folder / "sound.sqlite3"
    original.write_bytes(samples[0])
    sound = with_store(original, everything)

    def read(_: int, data: bytes) -> str:
        for old in folder.glob("mutant*"):
            old.unlink()
        path = folder / "mutant.sqlite3"
        path.write_bytes(data)
        store = SessionStore.open(path)
        try:
            return asyncio.run(judge(store, sound))
        finally:
            store.close_sync()

    return read


# ---- requests -----------------------------------------------------------------------------------------------------------


def batch_samples(_: Path) -> list[bytes]:
    """Lines for `ask --batch`."""
    lines: list[dict[str, Any]] = [
        {"prompt": "hello", "id": "long", "max_tokens": 3, "seed": 1, "temperature": 0.5},
        {"messages": [{"role": "system", "content": "be"}, *HELLO], "seed": 3, "stop": ["x"], "top_p": 0.9},
        {"prompt": "you", "id": 7, "regex": "[a-z]{2,9}", "logit_bias": {"5": 1.5}, "banned_tokens": [1, 2], "min_p": 0.1},
    ]
    return ["\n".join(json.dumps(line) for line in lines).encode()]


def open_batch(folder: Path, _: Sequence[bytes]) -> Read:
    """Answers the batch with the command line: exit status 0 to 2, and a sentence if it is refused."""
    from click.testing import CliRunner

    from app.cli.group import cli

    file = folder / "lines.jsonl"
    command = ["--data-dir", str(folder / "data"), "ask", "--batch", str(file), "--backend", "fake", "--max-tokens", "2"]

    def read(_: int, data: bytes) -> str:
        file.write_bytes(data)
        done = CliRunner().invoke(cli, command)
        if isinstance(done.exception, Exception):
            if isinstance(done.exception, TYPED):
                raise done.exception
            raise AssertionError(f"a traceback: {done.exception!r}") from done.exception
        assert done.exit_code in (0, 1, 2), f"exit status {done.exit_code}"
        assert "Traceback" not in done.output
        if done.exit_code == 2:
            raise InvalidRequestError(done.output)
        return "answered"

    return read


def frame_samples(_: Path) -> list[bytes]:
    """The bytes that cross the pipe in both directions."""
    import msgspec

    from runtime.options.generation import GenerationOptions, SamplingOptions
    from runtime.transport.arrays import pack_array
    from runtime.transport.frames import encode_group
    from runtime.transport.messages import CallMessage, Cancel, ChunkMessage, End, Load, PartMessage, Result, encode

    def call(number: int, method: str, **arguments: Any) -> CallMessage:
        return CallMessage(number, method, msgspec.Raw(encode(arguments)))

    options = GenerationOptions(max_tokens=5, sampling=SamplingOptions(temperature=0.5, logit_bias={3: 1.0}), stop=("x",))
    ids = np.arange(1, 4, dtype=np.int32)
    requests = [
        Load("x", "fake", {"context_length": 100}, "a:b", {"c": "d:e"}, 0.25),
        call(1, "logprobs", batch=[ids, ids[:2]], adapters=[["a", 1.0]], priority=1, cache_salt="s"),
        call(2, "generate", ids=ids, options=options),
        call(3, "embed", paths=[ids], pooling="mean", adapters=None),
        call(4, "tokenize", texts=["a", "b"]),
        Cancel(2),
    ]
    rows = pack_array(np.ones((3, 4), np.float32))
    replies = [
        PartMessage(1, memoryview(b"12")),
        Result(1, msgspec.Raw(encode(rows))),
        ChunkMessage(2, {"ids": pack_array(np.arange(3))}),
        End(2),
    ]
    return [b"".join(bytes(piece) for piece in encode_group([encode(m) for m in part])) for part in (requests, replies)]


def open_frames(_: Path, __: Sequence[bytes]) -> Read:
    """Reads requests with their arguments, and replies with their arrays, in portions."""
    from runtime.transport.arrays import unpack_array
    from runtime.transport.frames import FrameParser
    from runtime.transport.messages import CallMessage, ChunkMessage, Result, decode_replies, decode_requests
    from runtime.transport.methods import METHODS

    def read(number: int, data: bytes) -> str:
        parser, messages = FrameParser(), 0
        for at in range(0, len(data), 37):
            for group in parser.feed(data[at : at + 37]):
                for message in decode_replies(group) if number else decode_requests(group):
                    messages += 1
                    if isinstance(message, CallMessage) and message.method in METHODS:
                        METHODS[message.method].read_arguments(message.arguments)
                    elif isinstance(message, Result):
                        METHODS["logprobs"].read_answer(message.value)
                    elif isinstance(message, ChunkMessage):
                        [unpack_array(column) for column in message.columns.values()]
        return "read" if messages else "waits for more"

    return read


PARSERS: dict[str, Parser] = {
    "gguf": Parser(gguf_samples, open_gguf, "binary"),
    "safetensors": Parser(lambda _: [tiny("llama", "model.safetensors")], open_safetensors, "binary"),
    "configs-on-hf": Parser(lambda _: [tiny(name, "config.json") for name in ARCHITECTURES], open_config("hf")),
    "configs-on-mlx": Parser(lambda _: [tiny(name, "config.json") for name in ARCHITECTURES], open_config("mlx")),
    "tokenizers": Parser(lambda _: [tiny("llama", "tokenizer.json")], open_text("tokenizer.json")),
    "tokenizer-configs": Parser(lambda _: [tiny("llama", "tokenizer_config.json")], open_text("tokenizer_config.json")),
    "generation-configs": Parser(generation_samples, open_text("generation_config.json")),
    "adapters": Parser(adapter_samples, open_adapter, ("json", "binary")),
    "templates": Parser(template_samples, open_template, "text"),
    "schemas": Parser(grammar_samples("json"), open_grammar("json")),
    "regexes": Parser(grammar_samples("regex"), open_grammar("regex"), "text"),
    "lark": Parser(grammar_samples("lark"), open_grammar("lark"), "text"),
    "session-files": Parser(sessions_samples, open_sessions, "binary"),
    "session-json": Parser(transfer_samples("json"), open_transfer("json")),
    "portable-files": Parser(transfer_samples("elsewise"), open_transfer("elsewise"), "binary"),
    "batches": Parser(batch_samples, open_batch, "lines"),
    "frames": Parser(frame_samples, open_frames, "binary"),
}


# ---- the child ----------------------------------------------------------------------------------------------------------


def say(**words: object) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


def mutant(parser: Parser, samples: Sequence[bytes], seed: int, number: int) -> tuple[int, bytes]:
    """One mutant, the same for the same numbers: which sample it comes from, and its bytes."""
    chance = random.Random(f"{seed} {number}")
    which = number % len(samples)
    mutator = parser.mutator if isinstance(parser.mutator, str) else parser.mutator[which]
    return which, MUTATORS[mutator](samples[which], chance)


def main(name: str, place: str, seed: int, first: int, count: int) -> None:
    parser, folder = PARSERS[name], Path(place) / name
    if not folder.exists():
        inputs = Path(place) / "inputs"
        inputs.mkdir()
        samples = list(parser.samples(inputs))
        folder.mkdir()
        for number, sample in enumerate(samples):
            (folder / f"{number}.sample").write_bytes(sample)
    samples = [(folder / f"{number}.sample").read_bytes() for number in range(len(list(folder.glob("*.sample"))))]
    work = folder / f"from-{first}"
    work.mkdir()
    read = parser.opens(work, samples)
    for number, sample in enumerate(samples):
        read(number, sample)  # undamaged samples are accepted; this also loads all lazily imported modules
    status = Path("/proc/self/status").read_text()
    used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize")) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    for number in itertools.count(first):
        if number >= count:
            break
        which, data = mutant(parser, samples, seed, number)
        say(at=number)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            outcome = "untouched" if data == samples[which] else read(which, data)
        except TYPED as refusal:
            say(**({"outcome": "refused"} if str(refusal) else {"fault": "a refusal without a word"}))
        except Exception as error:  # noqa: BLE001  # the subject of the rows
            last = traceback.extract_tb(error.__traceback__)[-1]
            say(
                fault=f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno}) in {data[:120]!r}"
            )
        else:
            say(outcome=outcome)
        signal.setitimer(signal.ITIMER_PROF, 0)
    say(done=True)
    os._exit(0)  # exits are tested by another row


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
