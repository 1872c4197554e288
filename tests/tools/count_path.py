"""Counts the functions and files of this project that one warm request runs through, on all threads.

`python -m tests.tools.count_path [--backend hf|mlx] [--list]` prints a line for a batched query of four rows and one for a
request that generates one token, on the tiny llama in this process. `--list` names the functions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT / room}/" for room in ("app", "runtime", "storage", "ui"))


class Calls:
    """Records the functions of this project that are called, lambdas, comprehensions and generators included."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        self._recording = False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """The hook for `sys.setprofile`, called in every thread."""
        if self._recording and event == "call":
            self._seen.add(frame.f_code)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Clears the record."""
        self._seen.clear()
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def functions(self) -> list[tuple[str, str]]:
        """File and qualified name of each."""
        mine = [code for code in self._seen if code.co_filename.startswith(ROOMS)]
        return sorted((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname) for code in mine)


def counted(backend: str) -> dict[str, list[tuple[str, str]]]:
    """The functions of each kind of request."""
    calls = Calls()
    threading.setprofile(calls.profile)  # the model's own threads start below
    sys.setprofile(calls.profile)
    try:
        from runtime import GenerationOptions, load
        from tests.tiny_models import tiny_path

        with load(tiny_path("llama"), backend=backend, device="cpu", dtype="float32") as model:
            rows = [model.tokenize(text) for text in ("The sea", "The sea is", "A harbour", "A harbour in")]
            query = _query(calls, model, rows)
            token = _token(calls, model, rows[1], GenerationOptions(max_tokens=1, seed=1, ignore_eos=True))
            return {"batched query of four rows": query, "one generated token": token}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _query(calls: Calls, model: Any, rows: list[list[int]]) -> list[tuple[str, str]]:
    async def ask() -> None:
        for warm in (rows, [[*row, 20] for row in rows]):  # the last report of changes is made after the answer
            await model.batch_next_token_logprobs(warm)
        with calls.recording():
            for first in (40, 60, 80):  # whether a chunk is measured, and the like, differs from one to the next
                await model.batch_next_token_logprobs([[*row, first + at] for at, row in enumerate(rows)])

    asyncio.run(ask())
    return calls.functions()


def _token(calls: Calls, model: Any, prompt: list[int], options: Any) -> list[tuple[str, str]]:
    """A whole request; all of its prompt but the last token is cached."""
    list(model.generate_sync(prompt, options))
    with calls.recording():
        for last in (40, 60, 80):
            list(model.generate_sync([*prompt, last], options))
    return calls.functions()


def main() -> None:
    """Prints one line for each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    for what, functions in counted(given.backend).items():
        files = Counter(file for file, _ in functions)
        sys.stdout.write(f"{what}: {len(functions)} functions in {len(files)} files\n")
        if given.list:
            for file, number in files.items():
                sys.stdout.write(f"  {file} ({number}): {', '.join(name for each, name in functions if each == file)}\n")


if __name__ == "__main__":
    main()
