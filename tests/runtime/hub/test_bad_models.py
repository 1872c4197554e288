"""Repositories whose bytes match the hub's digests but whose content is bad: none of them is listed as usable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import DownloadError, InvalidRequestError
from runtime.hub import repository
from runtime.shelf.model_shelf import ModelShelf
from runtime.shelf.source import resolve
from runtime.text.template import ChatTemplate, TemplateLimits
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub, Request

WEIGHTS = "model.safetensors"
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def panicking(tokenizer: bytes) -> bytes:
    """A pattern that the tokenizers library panics on, with a BaseException that `except Exception` misses."""
    layout: dict[str, Any] = json.loads(tokenizer)
    pattern = {"Regex": "(?<=a+)(b"}
    layout["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return json.dumps(layout).encode()


@pytest.mark.parametrize("kind", ["panics", "no json", "no tokenizer", "deep"])
def test_a_tokenizer_that_cannot_be_read_is_refused(kind: str, hub: LocalHub, fetch: Fetch, tiny: Files, shelf: Path) -> None:
    # given
    sound = tiny["tokenizer.json"]
    bad = {"panics": panicking(sound), "no json": b"{", "no tokenizer": b"{}", "deep": b"[" * 100_000}
    hub.add("org/tiny", {**tiny, "tokenizer.json": bad[kind]})
    # when
    fault = failed(fetch)
    # then
    assert fault.reason == "unsuitable"
    assert str(fault).startswith("org/tiny@main: tokenizer.json: ")
    assert str(shelf) not in str(fault)
    hub.add("org/tiny", tiny)
    fetch()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"])
def test_a_small_file_that_cannot_be_read_is_refused(name: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", {**tiny, name: b"\xff\xfe{"})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert name in str(fault)


def test_a_looping_chat_template_does_not_affect_the_fetch_and_is_stopped_when_rendered(
    hub: LocalHub, fetch: Fetch, tiny: Files
) -> None:
    hub.add("org/tiny", {**tiny, "chat_template.jinja": FOREVER.encode()})
    source = ModelShelf().open(fetch()).chat_template
    assert source == FOREVER
    template = ChatTemplate(source, limits=TemplateLimits(seconds=0.2))
    with pytest.raises(InvalidRequestError, match=r"ran longer than 0\.2 s and was stopped"):
        template.render([{"role": "user", "content": "hi"}])
    assert template.child_pid is None


def test_file_names_that_lead_out_of_the_folder_are_ignored(hub: LocalHub, fetch: Fetch, tiny: Files, tmp_path: Path) -> None:
    # given a repository that lists such names beside a sound model
    tricks = [
        "../model.safetensors",
        "../../config.json",
        "/etc/model.safetensors",
        "sub/../../tokenizer.json",
        "..",
        "config.json/../../x",
        "model.safetensors/",
        "C:\\model.safetensors",
        "~/.profile",
    ]
    hub.add("org/tiny", {**tiny, **dict.fromkeys(tricks, b"!" * 20)})
    # then none is requested, and no file lies outside the model's folder
    folder = resolve(fetch()).path
    assert b"!" * 20 not in {path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for method, path, _ in hub.asked if ".." in path or "~" in path} == set()
    assert folder.parent == tmp_path / "models"
    assert {path.name for path in tmp_path.iterdir()} <= {"models", "hf"}


@pytest.mark.parametrize(
    "name", ["model\\..\\up.safetensors", "model\0.safetensors", "model ..safetensors", "model-\u202e.safetensors"]
)
def test_weights_with_an_odd_file_name_are_refused(name: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", {**{key: data for key, data in tiny.items() if key != WEIGHTS}, name: tiny[WEIGHTS]})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert "is no safetensors file of the repository's top folder" in str(fault)


def test_a_digest_in_a_listing_cannot_be_used_as_a_path(hub: LocalHub, fetch: Fetch, tiny: Files, tmp_path: Path) -> None:
    # given a digest that is a path: part files are named by the digest
    commit = hub.add("org/tiny", tiny)
    siblings = [
        {"rfilename": name, "size": 5, "blobId": "0" * 40, "lfs": {"sha256": "../" * 20 + "up00", "size": 5, "pointerSize": 9}}
        for name in ("config.json", "tokenizer.json", WEIGHTS)
    ]

    def answered(request: Request) -> bool:
        return "/api/" in request.path and request.json(200, {"id": "org/tiny", "sha": commit, "siblings": siblings})

    hub.before = [answered]
    assert "has the digest '../../" in str(failed(fetch))
    assert not list(tmp_path.rglob("*up00*"))


def test_a_tokenizer_may_be_larger_than_other_json_up_to_the_limit_of_loading(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a tokenizer larger than other JSON may be (Gemma's has 34 MB)
    size = len(tiny["tokenizer.json"])
    monkeypatch.setattr(repository, "MAX_JSON_BYTES", size - 1)
    hub.add("org/tiny", tiny)
    fetch()
    monkeypatch.setattr(repository, "MAX_TOKENIZER_BYTES", size - 2)
    hub.add("org/other", tiny)
    with pytest.raises(DownloadError, match=rf"tokenizer.json has {size:,} bytes; at most {size - 2:,} are taken"):
        fetch("org/other")
