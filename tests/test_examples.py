"""The Python examples of the documentation run as they stand, in a script and in a cell, and print what they should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.pages import PAGES, ROOT, blocks

PATIENCE_SECONDS = 240
TESTED_BY_OTHERS = {  # executed by tests of their own
    "docs/coming-from.md",  # tests/test_coming_from.py: every line of its tables too
    "docs/session-files.md",  # tests/app/cli/test_smollm2.py: behind the commands that write its file
}
EXAMPLES = {
    f"{page} {number}": example
    for page, text in PAGES.items()
    if page not in TESTED_BY_OTHERS
    for number, example in enumerate(blocks(text, "python"), 1)
}


def stages_and_options(out: str) -> None:
    for stage in ("typical", "xtc", "dry", "penalties", "bias"):
        assert re.search(rf"^{stage} +[0-9,]+ left", out, re.MULTILINE)
    assert re.search(r"^xtc .*, u = 0\.\d{3}: ", out, re.MULTILINE)
    assert "drawn again, without the model: True\n" in out
    # the end of an answer, and the sources of options
    assert "\neos_token_ids: 2 tokens, eos\nignore_eos: 20 tokens, length\n" in out
    layers = {"max_tokens": "call", "temperature": "session", "top_p": "session", "min_p": "preset", "top_k": "default"}
    decided = re.findall(r"^source of (?:sampling\.)?(\w+): (\w+)$", out, re.MULTILINE)
    assert dict(decided) == layers
    assert "the same tokens: True " in out


def roles(out: str) -> None:
    assert out.startswith(" Rome.")
    assert "\nno roles: " in out
    assert "\nUser: What is the capital of Italy?\n\nAssistant:" in out
    assert "\nuser: What is the capital of Italy?\nassistant:" in out


def many_at_once(out: str) -> None:
    assert "\ncancelled after 5 tokens: " in out
    assert re.search(r"^each in its own form:\| [A-Z][a-z]{2,9}\.\| (four|five), (six|seven)$", out, re.MULTILINE)
    best = [float(score) for score in re.findall(r"^early_stopping=\w+: \[(-[0-9.]+)", out, re.MULTILINE)]
    assert len(best) == 3
    assert best == sorted(best)  # a longer search finds no worse hypothesis


def cached(out: str) -> None:
    assert "cached and uncached agree: True" in out
    assert "raise kv_cache_bytes" in out


def adapters(out: str) -> None:
    assert "tokens computed for the swap: 0\n" in out  # swapping back is warm
    assert "\ncomputed under the adapter: 3 of 19\n" in out
    assert "['adapter_config.json', 'adapters.safetensors'] 0.0\n" in out
    assert out.endswith("\nloaded: [] the base to the bit: True\n")


def tools_in_a_prompt(out: str) -> None:
    assert "takes no tools" in out
    assert "Call one of these tools: [{" in out
    assert re.search(r"name='clock', arguments=\{'zone': '[A-Z][a-z]+/[A-Z][a-z]+'\}", out)


def says(text: str) -> Callable[[str], None]:
    def check(out: str) -> None:
        assert text in out

    return check


def pet(out: str) -> None:
    assert re.match(r"Pet\(name='.{0,12}', legs=[0-8]\)\n", out)


# As ipykernel runs the cells of a notebook: in a loop that goes on, in the thread that waits for it. Each has names of its own.
CELLS = """
import ast, asyncio, inspect, json, sys

async def run_cells():
    for cell in json.load(sys.stdin):
        code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        answer = eval(code, {"__name__": "__main__"})
        if inspect.iscoroutine(answer):
            await answer
        print("\\0", end="")

asyncio.run(run_cells())
"""


def sizing(out: str) -> None:
    """The table under the formula has what it prints."""
    row = r"^\| ([^|]+?) \| (\d+)[^|]* \| ([\d.]+) GB \| (\d+) KiB \| (\d+) \|$"
    table = re.findall(row, PAGES["docs/cluster.md"], re.MULTILINE)
    assert re.findall(r"^(.+?) +(\d+) GPUs +([\d.]+) GB +(\d+) KiB +(\d+)$", out, re.MULTILINE) == table
    assert len(table) == len(out.splitlines())


CHECKS: dict[str, Callable[[str], None]] = {  # by a text of one example alone
    "embed_sync": says("' Paris'"),
    "replay_draw": stages_and_options,
    'chat_format="none"': roles,
    "draft_model=": says("the same tokens: True "),
    "continue_many": many_at_once,
    "set_kv_budget": cached,
    "push_lora": adapters,
    "Neil Armstrong": says("GRAMMAR"),
    "BaseModel": pet,
    "render_chat(question, tools=tools)": tools_in_a_prompt,
    '"zone": "CET"': says("Let me look.  clock {'zone': 'CET'}"),
    "kv_heads, width, gpus in [": sizing,
    "offload_memory_bytes": says("bytes of weights are on disk"),
}


def test_each_check_is_of_one_example() -> None:
    assert {mark: sum(mark in example for example in EXAMPLES.values()) for mark in CHECKS} == dict.fromkeys(CHECKS, 1)


def test_no_example_needs_a_thread_without_a_loop() -> None:
    assert [name for name, example in EXAMPLES.items() if re.search(r"^[^#]*asyncio\.run\(", example, re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_a_script(name: str) -> None:
    check(EXAMPLES[name], run(EXAMPLES[name], ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", sorted({name.rpartition(" ")[0] for name in EXAMPLES}))
def test_the_examples_of_a_page_run_as_cells(page: str) -> None:
    cells = [example for name, example in EXAMPLES.items() if name.rpartition(" ")[0] == page]
    *printed, rest = run(CELLS, json.dumps(cells)).split("\0")
    assert rest == ""
    for cell, out in zip(cells, printed, strict=True):
        check(cell, out)


def run(code: str, typed: str) -> str:
    """What it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, input=typed, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check(example: str, out: str) -> None:
    assert not re.search(r": False\b", out)
    for mark, says_it in CHECKS.items():
        if mark in example:
            says_it(out)
