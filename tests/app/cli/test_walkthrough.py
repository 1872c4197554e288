"""The shell blocks of each page of the documentation, command by command, in an empty folder; the hub is one on loopback.

Blocks marked `sh` use only files that an earlier line of their page made; those marked `text` name folders of the reader.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import keyring
import pytest

from runtime import ModelShelf
from tests.app.cli.conftest import Done, Elsewise
from tests.pages import PAGES, ROOT, blocks, shell_commands
from tests.runtime.adapters.makers import save_adapter
from tests.runtime.hub.conftest import Keychain
from tests.runtime.hub.local_hub import LocalHub, running
from tests.runtime.loading.packed import packed
from tests.tiny_models import tiny_path

pytestmark = pytest.mark.slow
BLOCKS = [
    [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("elsewise ")]
    for page in PAGES.values()
    for block in blocks(page, "sh", "text")
]
TYPED = {"login": "hf_aToken\n", "remove": "y\n"}  # the input for a prompt
Walk = Callable[[str], dict[str, Done]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def walk(elsewise: Elsewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    """Runs the block that has some words, in an empty folder; returns the output of each command."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    ModelShelf().add(tiny_path("llama"), "smollm2")  # installed by `make setup`
    before = keyring.get_keyring()
    keyring.set_keyring(Keychain())

    def run(words: str) -> dict[str, Done]:
        [block] = [block for block in BLOCKS if any(words in " ".join(line) for line in block)]
        found: dict[str, Done] = {}
        for line in block:
            monkeypatch.setattr("sys.stdin", io.StringIO(next((said for word, said in TYPED.items() if word in line), "")))
            done = elsewise(*line, *(("--max-tokens", "2") if line[0] == "ask" else ()))
            assert done.code == 0, (line, done.err)
            assert done.out.strip(), line
            found[" ".join(line)] = done
        return found

    yield run
    keyring.set_keyring(before)


def test_models_from_the_hub(walk: Walk, hub: LocalHub) -> None:
    files = {path.name: path.read_bytes() for path in tiny_path("llama").iterdir() if path.is_file()}
    commit = hub.add("HuggingFaceTB/SmolLM2-360M-Instruct", files)
    hub.add("org/Qwen3-0.6B-Instruct", files)
    said = walk("models fetch")
    name = f"HuggingFaceTB/SmolLM2-360M-Instruct@{commit[:12]}"
    assert commit in said["models fetch HuggingFaceTB/SmolLM2-360M-Instruct --dry-run"].out
    assert name in said["models fetch HuggingFaceTB/SmolLM2-360M-Instruct"].out
    assert f"{name}: sound" in said["models verify"].out
    assert "bytes freed" in said["models remove HuggingFaceTB/SmolLM2-360M-Instruct"].out
    assert sorted(entry.name for entry in ModelShelf().models()) == ["HuggingFaceTB/SmolLM2-360M-Instruct-4bit", "smollm2"]


def test_a_gguf_file_in_both_forms(walk: Walk) -> None:
    packed(tiny_path("llama"), lambda name: "Q4_0").write(Path("model.Q4_0.gguf"))
    said = walk("--keep-quantised")
    assert len(said) == 2
    for done, name in zip(said.values(), ("model.Q4_0-mlx", "model.Q4_0"), strict=True):
        assert f"{name}: ready in " in done.out
        assert f"elsewise ask --model {name}" in done.out
    assert [entry.format for entry in ModelShelf().models()] == ["float32, from GGUF", "from GGUF", "link"]


def test_model_folders_of_the_reader(walk: Walk) -> None:
    Path("a-base-model").symlink_to(tiny_path("llama"))
    for name in ("a-large-one", "a-small-one"):
        Path(name).symlink_to(tiny_path("llama"))
    for seed, name in enumerate(("pirate", "polite")):
        config = save_adapter(Path(name), "llama", seed=seed) / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "smollm2"}))
    assert "me/pirate" in " ".join(walk("./pirate"))


def test_weights_in_fewer_bits(walk: Walk) -> None:
    said = walk("--weights float16")
    assert "float16" in said["models info smollm2"].out  # the measurements


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(PAGES[page], "sh")])
def test_every_line_uses_only_files_that_an_earlier_line_made(
    page: str, walk: Walk, elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    del walk  # its empty folder, its empty data folder, its one model
    hubs = "models fetch"  # in a test of its own
    done = 0
    for command in shell_commands(*(block for block in blocks(PAGES[page], "sh") if hubs not in block)):
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), command
        elif "elsewise" not in words:
            shell = "true" if words[0] == "source" else command  # made by `make run`
            subprocess.run(["bash", "-euc", shell], check=True, timeout=10)
        else:
            said, command = "", command.replace('" Paris"', '"5"').replace('" London"', "6")  # no tokens of this model
            if "|" in words:
                before, _, command = command.partition("|")
                said = subprocess.run(["bash", "-euc", before], check=True, timeout=10, capture_output=True, text=True).stdout
            words = shlex.split(command, comments=True)
            out = words[-1] if words[-2] == ">" else None
            words = words[1:-2] if out else words[1:]
            monkeypatch.setattr("sys.stdin", io.StringIO(said))
            ended = elsewise(
                *words, *(("--max-tokens", "24") if words[0] in ("ask", "chat") and "--batch" not in words else ())
            )
            broken = ended.code == 1 and "incomplete" in ended.err  # a model of random weights need not come to an end
            assert ended.code == 0 or broken, (command, ended.err)
            if out:
                Path(out).write_text(ended.out)
            done += 1
    assert done
