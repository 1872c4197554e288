"""Damaged inputs: seeded mutators, and the parent of a child process that reads them and may die or hang.

A parser may take a mutant, or refuse it with an error of ours. Anything else is a failure: another exception, a signal, ten
seconds of computing, no answer at all, or more than `MEMORY_BYTES` of additional memory.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.reliability.suite import REPOSITORY, Order, Tally

CPU_SECONDS = 10  # of one mutant
WALL_SECONDS = 45  # of one mutant on a busy machine; no mutant waits for anything
START_SECONDS = 150  # until a child has imported its modules and read an undamaged file
MEMORY_BYTES = 2 << 30
AT_ONCE = 120  # mutants of one child, since the memory limit is that of the whole child
MOST_FAILURES = 20  # seconds after which a row ends

EXTREMES = [0, 1, 0x7F, 0xFF, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-40, 1e40, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**30),
    *("", "x", "0", "1e999", "null", "\u0000", "\ud83c", "𝕏" * 9, "a" * 10_000, "../../x", "{{ 1 }}", "<|im_start|>"),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {"a": []}}}, [0] * 1000, [1, "a", None], ["x"] * 300),
]
PIECES = [
    *"()[]{}|*+?^$.\\\"',:/#%-\n\0 𝕏\u202e",
    *(
        "{1,1000000}",
        "{0,}",
        "(?=",
        "(?:",
        "[^",
        "\\p{L}",
        "\\d+",
        "(a|b)*",
        "(" * 9,
        ")" * 9,
        "\\u0041",
        "\\x",
        "0" * 50,
        "[" * 9,
    ),
    *("{{", "}}", "{%", "%}", "{% for x in range(1000000000) %}", "{% endfor %}", "{{ x ** 9 ** 9 }}", "{% if", "loop"),
    *("messages", "start:", "%ignore", "%json", "NUMBER", "A: A", "start: start", "/a*/", "null", "true", "1e400", "NaN"),
    *("properties", "$ref", '{"$ref": "#"}', "allOf", "minItems", "999999999999", "pattern", "enum", '"type"'),
]


def flipped(data: bytes, chance: random.Random) -> bytes:
    """A binary file with one damaged place, mostly near its start, where headers are."""
    near = max(1, min(len(data), 1 << 14))
    at = chance.randrange(near if chance.random() < 0.8 else max(1, len(data)))
    spoilt, kind = bytearray(data), chance.randrange(7)
    if kind == 0:
        for _ in range(chance.randrange(1, 5)):
            spoilt[chance.randrange(near)] ^= 1 << chance.randrange(8)
    elif kind == 1:
        spoilt[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
    elif kind == 2:
        spoilt[at : at + 8] = chance.choice(EXTREMES).to_bytes(8, chance.choice(["little", "big"]))
    elif kind == 3:
        del spoilt[at:]
    elif kind == 4:
        del spoilt[at : at + chance.randrange(1, 64)]
    elif kind == 5:
        spoilt[at:at] = spoilt[at : at + chance.randrange(1, 64)]
    else:
        spoilt[at : at + 32] = chance.randbytes(32)
    return bytes(spoilt)


def edited(data: bytes, chance: random.Random) -> bytes:
    """A text with a few pieces removed, inserted, moved or repeated."""
    text = data.decode(errors="replace")
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at, until = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        until = min(until, at + chance.choice([1, 3, 30]))
        kind = chance.randrange(5)
        if kind == 0:
            text = text[:at] + text[until:]
        elif kind == 1:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif kind == 2:
            text = text[:at] + chance.choice(PIECES) + text[until:]
        elif kind == 3:
            text = text[:until] + text[at:until] * chance.choice([1, 2, 50]) + text[until:]
        else:
            there = chance.randrange(len(text) + 1)
            text = text[:there] + text[at:until] + text[there:]
    return text.encode(errors="surrogatepass")


def changed(data: bytes, chance: random.Random) -> bytes:
    """A JSON text with changed values, names or types; now and then invalid JSON."""
    if chance.random() < 0.15:
        return edited(data, chance) if chance.random() < 0.7 else flipped(data, chance)
    document = json.loads(data)
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3])):
        if not document or not isinstance(document, (dict, list)):
            break
        holder, key = _place(document, chance)
        kind = chance.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[key + chance.choice(["x", "", "_id", "\u0000"])] = holder.pop(key)
        elif kind == 2 and isinstance(holder[key], (int, float)):
            holder[key] = chance.choice([-holder[key], holder[key] + 1, holder[key] * 1000, holder[key] / 3, str(holder[key])])
        elif kind == 3:
            holder[key] = [holder[key]] if chance.random() < 0.5 else {"value": holder[key]}
        else:
            holder[key] = chance.choice(VALUES)
    return json.dumps(document).encode()


def _place(document: Any, chance: random.Random) -> tuple[Any, Any]:
    """An object or list of a document and a key in it; top levels are as likely as the deeper ones together."""
    holder = document
    while True:
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not inner or not isinstance(inner, (dict, list)) or chance.random() < 0.3:
            return holder, key
        holder = inner


def lines(data: bytes, chance: random.Random) -> bytes:
    """JSON lines, one of which is another."""
    several = data.splitlines()
    at = chance.randrange(len(several))
    several[at] = changed(several[at], chance)
    return b"\n".join(several) + b"\n"


MUTATORS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "binary": flipped,
    "text": edited,
    "json": changed,
    "lines": lines,
}


# ---- the parent ---------------------------------------------------------------------------------------------------------


def mutants(order: Order, parser: str) -> Tally:
    """Mutants of one kind of input; if a child dies or hangs, another child continues after the failing mutant."""
    tally, first = Tally(), 0
    while first < order.count and len(tally.failures) < MOST_FAILURES:
        first = _run(order, parser, first, min(first + AT_ONCE, order.count), tally)
    tally.tried = first
    return tally


def _run(order: Order, parser: str, first: int, end: int, tally: Tally) -> int:
    """Runs one child for the mutants up to `end`; returns the number of the next mutant."""
    command = [sys.executable, "-m", "tests.reliability.parsers", parser, str(order.folder), str(order.seed)]
    log = order.folder / "child.log"
    with log.open("wb") as stream:
        child = subprocess.Popen([*command, str(first), str(end)], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=stream)
        assert child.stdout is not None
        at, patience, held = -1, START_SECONDS, b""
        try:
            while True:
                if not select.select([child.stdout], [], [], patience)[0]:
                    child.kill()
                    what = f"mutant {at}: gave no sign of life for {patience} s" if at >= 0 else "the child did not start"
                    tally.failures.append(what)
                    break
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    break
                *words, held = (held + data).split(b"\n")
                for line in words:
                    said = json.loads(line)
                    if "at" in said:
                        at, patience = said["at"], WALL_SECONDS
                    elif "fault" in said:
                        tally.failures.append(f"mutant {at}: {said['fault']}")
                    elif "done" in said:
                        return end
                    else:
                        tally.seen[said["outcome"]] += 1
        finally:
            status = child.wait()
            child.stdout.close()
    if at < 0:
        tally.failures.append(f"the child of {parser} ended with {status}: {log.read_text(errors='replace')[-1000:]}")
        return order.count
    if status == -signal.SIGPROF:
        tally.failures.append(f"mutant {at}: took more than {CPU_SECONDS} s of computing")
    elif status != -signal.SIGKILL:
        tally.failures.append(f"mutant {at}: ended its process with {status}: {log.read_text(errors='replace')[-500:]}")
    return at + 1


def __getattr__(name: str) -> Callable[[Order], Tally]:
    """A row's function, for the parser of its name."""
    return partial(mutants, parser=name.replace("_", "-"))
