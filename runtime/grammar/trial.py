"""Checks of grammars: each is compiled in a child process that can be killed, many in one process one after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, get_args

from resources.processes import child_command
from runtime.errors import GrammarError
from runtime.grammar.source import Grammar, GrammarKind, json_defaults, readable

CPU_SECONDS: Final = 5  # processor time for the compilation of one grammar
MEMORY_BYTES: Final = 2 << 30  # of a process
WALL_SECONDS: Final = 60.0  # for one process on a busy machine
EACH: Final = 32  # grammars per process: starting a process takes as long as compiling this many
MOST_PROCESSES: Final = 4  # at the same time
KEPT: Final = 1024  # verdicts
CHILD_STACK: Final = 64 << 20  # rules that refer to rules are compiled recursively
LIMITS: Final[dict[str, Any]] = {
    "verbose_errors": False,  # no dump of the parser in errors that are shown
    "precompute_large_lexemes": False,  # lazily, within each step's limit: compilation must not depend on the vocabulary
}
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")  # environment variables of the child


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The result of a trial."""

    fault: str | None  # what is wrong with the grammar; None: nothing
    lasting: bool = True  # False: the process ended, perhaps because of the machine; not cached


_known: OrderedDict[Grammar, TrialResult] = OrderedDict()  # lasting ones
_lock = threading.Lock()


def check_grammars(grammars: Iterable[Grammar]) -> dict[Grammar, GrammarError | None]:
    """The error of each grammar: llguidance cannot read it, it allows nothing, or takes too long; None: it is valid.

    Blocks: 0.1 s and some milliseconds for each; any thread. A grammar that ends its process is tried a second time, as the
    first of another process, before it is refused.
    """
    found: dict[Grammar, GrammarError | None] = {}
    new: list[Grammar] = []
    for grammar in dict.fromkeys(grammars):
        try:
            _check_text(grammar)
        except GrammarError as fault:
            found[grammar] = fault
            continue
        with _lock:
            known = _known.get(grammar)
            if known is not None:
                _known.move_to_end(grammar)
        if known is None:
            new.append(grammar)
        else:
            found[grammar] = _error(grammar, known)
    for grammar, verdict in _try_in_parallel(new):
        found[grammar] = _error(grammar, verdict)
        if verdict.lasting:
            with _lock:
                _known[grammar] = verdict
                while len(_known) > KEPT:
                    _known.popitem(last=False)
    return found


def _check_text(grammar: Grammar) -> None:
    if grammar.kind not in get_args(GrammarKind):
        raise GrammarError(f"a grammar is one of {', '.join(get_args(GrammarKind))}, not {grammar.kind!r:.80}")
    grammar.check_source()
    if grammar.kind == "json_schema":
        json_defaults(grammar.source)


def _error(grammar: Grammar, verdict: TrialResult) -> GrammarError | None:
    return None if verdict.fault is None else GrammarError(f"the {grammar.label} cannot be used: {verdict.fault}")


def _try_in_parallel(grammars: Sequence[Grammar]) -> list[tuple[Grammar, TrialResult]]:
    processes = min(MOST_PROCESSES, os.cpu_count() or 1, -(-len(grammars) // EACH))
    if processes < 2:
        return _try(grammars)
    with ThreadPoolExecutor(processes, thread_name_prefix="elsewise-grammar-trial") as pool:
        parts = pool.map(_try, [grammars[i::processes] for i in range(processes)])
        return [one for part in parts for one in part]


def _try(grammars: Sequence[Grammar]) -> list[tuple[Grammar, TrialResult]]:
    """Tries all grammars in one process; if one of them ends it, the rest, beginning with that one, in another process."""
    found: list[tuple[Grammar, TrialResult]] = []
    left = list(grammars)
    while left:
        answers, end = _run(left)
        for grammar, fault in zip(left, answers, strict=False):  # the process may have ended before the last grammars
            found.append((grammar, TrialResult(None if fault is None else readable(fault))))
        left = left[len(answers) :]
        if not answers:
            found.append((left.pop(0), TrialResult(end, lasting=False)))
    return found


def _run(grammars: Sequence[Grammar]) -> tuple[list[str | None], str]:
    """The faults of the grammars in order, until the process ended; and why it ended, in words."""
    request = {
        "grammars": [
            {
                "kind": grammar.kind,
                "source": grammar.source,
                "json_defaults": json_defaults(grammar.source) if grammar.kind == "json_schema" else {},
            }
            for grammar in grammars
        ],
        "limits": LIMITS,
        "cpu_seconds": CPU_SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "stack_bytes": CHILD_STACK,
    }
    try:
        done = subprocess.run(
            child_command("runtime.grammar.trial_child", isolated=True),
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
    except subprocess.TimeoutExpired as late:
        return _answers(late.stdout or b""), f"compiling it took longer than {WALL_SECONDS:g} s; make it smaller"
    except OSError as fault:
        raise GrammarError(f"no process could be started to check the {grammars[0].label}: {fault}") from fault
    return _answers(done.stdout), _why(done)


def _answers(output: bytes) -> list[str | None]:
    """Faults from whole lines; the last line may be cut."""
    *lines, _ = output.split(b"\n")
    return [json.loads(line)["error"] for line in lines]


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why the process ended."""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        way_out = "make it smaller (what grows is a large multipleOf, repetition or allOf)"
        return f"compiling it took more than {CPU_SECONDS} s of computing; {way_out}"
    if done.returncode == -signal.SIGSEGV:
        return "its rules are nested too deeply to be compiled; nest them less"
    last: Any = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"compiling it failed (exit code {done.returncode}), maybe for want of memory: {''.join(last)[:300]}"
