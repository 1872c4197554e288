"""The README's examples in Python: they run as they stand, and what they say of themselves is so."""

from __future__ import annotations

import re

import pytest

from tests.test_house import ROOT, python


@pytest.mark.slow
@pytest.mark.timeout(900)  # each example loads a model, some of them three
def test_the_examples_of_the_readme_run_as_they_stand() -> None:
    _, *examples = (ROOT / "README.md").read_text("utf-8").split("```python\n")
    told = []
    for example in examples:
        done = python("-W", "error", "-c", example.partition("```")[0])
        assert (done.returncode, done.stderr) == (0, "")
        told.append(done.stdout)
    assert "' Paris'" in told[0]
    for stage in ("typical", "xtc", "dry", "penalties", "bias"):
        assert re.search(rf"^{stage} +[0-9,]+ left", told[0], re.MULTILINE)
    assert re.search(r"^xtc .*, u = 0\.\d{3}: ", told[0], re.MULTILINE)
    assert any("Let me look.  clock {'zone': 'CET'}" in text for text in told)
    assert any("GRAMMAR" in text for text in told)
    adapters = next(text for text in told if "tokens computed for the swap: 0\n" in text)  # swapping back is warm
    assert "\ncomputed under the adapter: 3 of 19\n" in adapters
    assert "['adapter_config.json', 'adapters.safetensors'] 0.0\n" in adapters
    assert adapters.endswith("\nloaded: [] the base to the bit: True\n")
    assert any("bytes of weights are on disk" in text for text in told)
    assert any("cached and uncached agree: True" in text and "raise kv_cache_bytes" in text for text in told)
    # what an example says of itself is so
    claims = re.findall(r"^(.*): (True|False)\b", "\n".join(told), re.MULTILINE)
    assert {answer for _, answer in claims} == {"True"}
    said = [claim for claim, _ in claims]
    assert said.count("the same tokens") == 2
    assert "drawn again, without the model" in said
    # options: what ends an answer, and who decided
    assert "\neos_token_ids: 2 tokens, eos\nignore_eos: 20 tokens, length\n" in told[0]
    layers = {"max_tokens": "call", "temperature": "session", "top_p": "session", "min_p": "preset", "top_k": "default"}
    decided = re.findall(r"^who decided (?:sampling\.)?(\w+): (\w+)$", told[0], re.MULTILINE)
    assert dict(decided) == layers
    # a model without a template, and with one of one's own
    roles = next(text for text in told if "\nno roles: " in text)
    assert roles.startswith(" Rome.")
    assert "\nUser: What is the capital of Italy?\n\nAssistant:" in roles
    assert "\nuser: What is the capital of Italy?\nassistant:" in roles
    # many at once: forms of their own, a stream that was stopped, beams
    many = next(text for text in told if "cancelled after 5 tokens: " in text)
    assert re.search(r"^each in its own form:\| [A-Z][a-z]{2,9}\.\| (four|five), (six|seven)$", many, re.MULTILINE)
    best = [float(score) for score in re.findall(r"^early_stopping=\w+: \[(-[0-9.]+)", many, re.MULTILINE)]
    assert len(best) == 3
    assert best == sorted(best)  # who looks longer finds no worse
    # a pydantic class, and tools in a prompt and in the answer
    assert any(re.match(r"Pet\(name='.{0,12}', legs=[0-8]\)\n", text) for text in told)
    tools = next(text for text in told if "Call one of these tools: [{" in text)
    assert "takes no tools" in tools
    assert re.search(r"name='clock', arguments=\{'zone': '[A-Z][a-z]+/[A-Z][a-z]+'\}", tools)
