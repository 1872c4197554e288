"""The shell blocks of the README, command by command, in an empty folder; the hub is one on loopback.

Blocks marked `sh` use only what a line before them made; those marked `text` have names of folders that a reader puts in.
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
from tests.runtime.adapters.makers import save_adapter
from tests.runtime.hub.conftest import Keychain
from tests.runtime.hub.local_hub import LocalHub, running
from tests.runtime.loading.packed import packed
from tests.tiny_models import tiny_path

pytestmark = pytest.mark.slow
README = Path(__file__).parents[3] / "README.md"
SH = re.findall(r"^```sh\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
BLOCKS = [
    [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("elsewise ")]
    for block in re.findall(r"^```(?:sh|text)\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]
TYPED = {"login": "hf_aToken\n", "remove": "y\n"}  # by whoever is asked
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
    """Runs the block that has some words, as a newcomer in an empty folder; what each command says, by its words."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    ModelShelf().add(tiny_path("llama"), "smollm2")  # what `make setup` brings
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
    assert "are free again" in said["models remove HuggingFaceTB/SmolLM2-360M-Instruct"].out
    assert sorted(entry.name for entry in ModelShelf().models()) == [f"{name}-4bit", "smollm2"]


def test_a_gguf_file_in_both_forms(walk: Walk) -> None:
    packed(tiny_path("llama"), lambda name: "Q4_0").write(Path("model.Q4_0.gguf"))
    said = walk("--keep-quantised")
    assert len(said) == 2
    for done, name in zip(said.values(), ("model.Q4_0-mlx", "model.Q4_0"), strict=True):
        assert f"{name}: ready in " in done.out
        assert f"elsewise ask --model {name}" in done.out
    assert [entry.format for entry in ModelShelf().models()] == ["float32, from GGUF", "from GGUF", "link"]


def test_folders_of_ones_own(walk: Walk) -> None:
    Path("a-base-model").symlink_to(tiny_path("llama"))
    for name in ("a-large-one", "a-small-one"):
        Path(name).symlink_to(tiny_path("llama"))
    for seed, name in enumerate(("pirate", "polite")):
        config = save_adapter(Path(name), "llama", seed=seed) / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "smollm2"}))
    assert "me/pirate" in " ".join(walk("./pirate"))


def test_weights_in_fewer_bits(walk: Walk) -> None:
    said = walk("--weights float16")
    assert "float16" in said["models info smollm2"].out  # what was measured


def commands() -> Iterator[str]:
    """Those of the blocks marked `sh`, in order, but for the hub's (see `test_models_from_the_hub`); a here-document is one."""
    command, ends = "", ""
    for line in "".join(block for block in SH if "models fetch" not in block).splitlines():
        command += f"{line}\n"
        opens = re.search(r"<<'(\w+)'$", line)
        ends = opens[1] if opens else ends
        if not ends or line == ends:
            yield command
            command = ends = ""


def test_every_line_uses_only_what_a_line_before_it_made(
    walk: Walk, elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    del walk  # its empty folder, its empty data folder, its one model
    done = 0
    for command in commands():
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (README.parent / "Makefile").read_text("utf-8"), re.MULTILINE), command
        elif "elsewise" not in words:
            shell = "true" if words[0] == "source" else command  # what `make run` has made
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
    assert done > 30
