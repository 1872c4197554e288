"""Repositories whose bytes are what the hub says, and whose content is bad: nothing of them is ever listed as usable."""

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
def test_a_small_file_that_is_none_is_refused(name: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", {**tiny, name: b"\xff\xfe{"})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert name in str(fault)


def test_a_template_that_loops_is_no_matter_for_a_fetch_and_stopped_when_it_is_used(
    hub: LocalHub, fetch: Fetch, tiny: Files
) -> None:
    hub.add("org/tiny", {**tiny, "chat_template.jinja": FOREVER.encode()})
    source = ModelShelf().open(fetch()).chat_template
    assert source == FOREVER
    template = ChatTemplate(source, limits=TemplateLimits(seconds=0.2))
    with pytest.raises(InvalidRequestError, match=r"ran longer than 0\.2 s and was stopped"):
        template.render([{"role": "user", "content": "hi"}])
    assert template.child_pid is None


def test_names_that_lead_elsewhere_are_left_alone(hub: LocalHub, fetch: Fetch, tiny: Files, tmp_path: Path) -> None:
    # given a repository that lists them beside a sound model
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
    # then none is asked for, and nothing lies where it should not
    folder = resolve(fetch()).path
    assert b"!" * 20 not in {path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for method, path, _ in hub.asked if ".." in path or "~" in path} == set()
    assert folder.parent == tmp_path / "models"
    assert {path.name for path in tmp_path.iterdir()} <= {"models", "hf"}


@pytest.mark.parametrize(
    "name", ["model\\..\\up.safetensors", "model\0.safetensors", "model ..safetensors", "model-\u202e.safetensors"]
)
def test_weights_by_an_odd_name_are_refused(name: str, hub: LocalHub, fetch: Fetch, tiny: Files) -> None:
    hub.add("org/tiny", {**{key: data for key, data in tiny.items() if key != WEIGHTS}, name: tiny[WEIGHTS]})
    fault = failed(fetch)
    assert fault.reason == "unsuitable"
    assert "is no safetensors file of the repository's top folder" in str(fault)


def test_a_listing_may_not_name_where_a_file_is_put(hub: LocalHub, fetch: Fetch, tiny: Files, tmp_path: Path) -> None:
    # given a digest, which a part file is called by, that is a path
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


def test_a_large_tokenizer_is_taken_as_far_as_loading_takes_it(
    hub: LocalHub, fetch: Fetch, tiny: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one that is larger than other JSON may be (Gemma's has 34 MB)
    size = len(tiny["tokenizer.json"])
    monkeypatch.setattr(repository, "MAX_JSON_BYTES", size - 1)
    hub.add("org/tiny", tiny)
    fetch()
    monkeypatch.setattr(repository, "MAX_TOKENIZER_BYTES", size - 2)
    hub.add("org/other", tiny)
    with pytest.raises(DownloadError, match=rf"tokenizer.json has {size:,} bytes; at most {size - 2:,} are taken"):
        fetch("org/other")
