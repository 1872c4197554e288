"""The Python examples of the README run as they stand, in a script and in a notebook's cell, and what each says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 240
EXAMPLES = tuple(part.partition("```")[0] for part in (ROOT / "README.md").read_text("utf-8").split("```python\n")[1:])


def stages_and_options(told: str) -> None:
    assert "' Paris'" in told
    for stage in ("typical", "xtc", "dry", "penalties", "bias"):
        assert re.search(rf"^{stage} +[0-9,]+ left", told, re.MULTILINE)
    assert re.search(r"^xtc .*, u = 0\.\d{3}: ", told, re.MULTILINE)
    assert "drawn again, without the model: True\n" in told
    # what ends an answer, and who decided
    assert "\neos_token_ids: 2 tokens, eos\nignore_eos: 20 tokens, length\n" in told
    layers = {"max_tokens": "call", "temperature": "session", "top_p": "session", "min_p": "preset", "top_k": "default"}
    decided = re.findall(r"^who decided (?:sampling\.)?(\w+): (\w+)$", told, re.MULTILINE)
    assert dict(decided) == layers


def roles(told: str) -> None:
    assert told.startswith(" Rome.")
    assert "\nno roles: " in told
    assert "\nUser: What is the capital of Italy?\n\nAssistant:" in told
    assert "\nuser: What is the capital of Italy?\nassistant:" in told


def guesses(told: str) -> None:
    assert told.count("the same tokens: True ") == 2


def many_at_once(told: str) -> None:
    assert "\ncancelled after 5 tokens: " in told
    assert re.search(r"^each in its own form:\| [A-Z][a-z]{2,9}\.\| (four|five), (six|seven)$", told, re.MULTILINE)
    best = [float(score) for score in re.findall(r"^early_stopping=\w+: \[(-[0-9.]+)", told, re.MULTILINE)]
    assert len(best) == 3
    assert best == sorted(best)  # who looks longer finds no worse


def cached(told: str) -> None:
    assert "cached and uncached agree: True" in told
    assert "raise kv_cache_bytes" in told


def adapters(told: str) -> None:
    assert "tokens computed for the swap: 0\n" in told  # swapping back is warm
    assert "\ncomputed under the adapter: 3 of 19\n" in told
    assert "['adapter_config.json', 'adapters.safetensors'] 0.0\n" in told
    assert told.endswith("\nloaded: [] the base to the bit: True\n")


def tools_in_a_prompt(told: str) -> None:
    assert "takes no tools" in told
    assert "Call one of these tools: [{" in told
    assert re.search(r"name='clock', arguments=\{'zone': '[A-Z][a-z]+/[A-Z][a-z]+'\}", told)


def says(text: str) -> Callable[[str], None]:
    def check(told: str) -> None:
        assert text in told

    return check


def pet(told: str) -> None:
    assert re.match(r"Pet\(name='.{0,12}', legs=[0-8]\)\n", told)


# As ipykernel runs a cell: in a loop that goes on, in the thread that waits for it.
CELL = """
import ast, asyncio, inspect, sys

async def run_cell():
    code = compile(sys.stdin.read(), "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    answer = eval(code, {"__name__": "__main__"})
    if inspect.iscoroutine(answer):
        await answer

asyncio.run(run_cell())
"""

CHECKS: dict[str, Callable[[str], None]] = {  # by what stands in one example alone
    "replay_draw": stages_and_options,
    'chat_format="none"': roles,
    "SpeculativeOptions": guesses,
    "continue_many": many_at_once,
    "set_kv_budget": cached,
    "push_lora": adapters,
    "Neil Armstrong": says("GRAMMAR"),
    "BaseModel": pet,
    "render_chat(question, tools=tools)": tools_in_a_prompt,
    '"zone": "CET"': says("Let me look.  clock {'zone': 'CET'}"),
    "offload_memory_bytes": says("bytes of weights are on disk"),
}


def test_each_check_is_of_one_example() -> None:
    assert {mark: sum(mark in example for example in EXAMPLES) for mark in CHECKS} == dict.fromkeys(CHECKS, 1)


def test_no_example_needs_a_thread_without_a_loop() -> None:
    assert [example for example in EXAMPLES if re.search(r"^[^#]*asyncio\.run\(", example, re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(EXAMPLES) + 1))
@pytest.mark.parametrize("place", ["script", "cell"])
def test_an_example_of_the_readme_runs_as_it_stands(place: str, number: int) -> None:
    example = EXAMPLES[number - 1]
    command = [sys.executable, "-W", "error", "-c", example if place == "script" else CELL]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=example if place == "cell" else "",
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r": False\b", done.stdout)
    for mark, check in CHECKS.items():
        if mark in example:
            check(done.stdout)
