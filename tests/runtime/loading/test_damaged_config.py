"""Configurations with an invalid value: the model loads, or is refused with the file and the field; nothing else happens."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import LoadProgress, ModelLoadError, import_model, load
from tests.tiny_models import tiny_path

ABSENT = object()
BAD: tuple[Any, ...] = (
    *(None, -1, 0, 1e30, {"__float__": "NaN"}, "x", [], {}, True, 10**30, {"a": {"b": [1]}}, 0.5, [None], 1_000_000_000),
    ABSENT,
)
ARCHITECTURES = ("llama", "qwen3", "gpt2", "gemma3", "gemma2", "mistral", "phi3", "mamba", "lfm2", "falcon_h1")
SAMPLE = 20  # per architecture in the fast test
Site = tuple[str, ...]


def sites(config: dict[str, Any], before: Site = ()) -> Iterator[Site]:
    """Every field of a configuration, including those of nested objects."""
    for name, value in config.items():
        yield (*before, name)
        if isinstance(value, dict) and "__float__" not in value:
            yield from sites(value, (*before, name))


def changed(config: dict[str, Any], site: Site, value: Any) -> dict[str, Any]:
    spoiled = copy.deepcopy(config)
    place = spoiled
    for name in site[:-1]:
        place = place[name]
    if value is ABSENT:
        del place[site[-1]]
    else:
        place[site[-1]] = value
    return spoiled


class Spoiled:
    """A tiny model whose config.json is rewritten for each case."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = Path(shutil.copytree(tiny_path(name), folder / name))
        self.config = json.loads((self.folder / "config.json").read_text())

    def cases(self) -> list[tuple[Site, Any]]:
        return [(site, bad) for site in sites(self.config) for bad in BAD]

    def share(self) -> list[tuple[Site, Any]]:
        """The cases for this architecture when those of all are distributed: each case is in one share."""
        having: dict[Site, list[str]] = {}
        for name in ARCHITECTURES:
            for site in sites(json.loads((tiny_path(name) / "config.json").read_text())):
                having.setdefault(site, []).append(name)
        shares = []
        for place, (site, bad) in enumerate(self.cases()):
            names = having[site]
            turn = (sorted(having).index(site) + place % len(BAD)) % len(names)
            if self.name == names[turn]:
                shares.append((site, bad))
        return shares

    def outcome(self, site: Site, bad: Any, engine: str) -> str:
        """The result of loading: "" for a load, or the message of a refusal. Any other exception is raised."""
        (self.folder / "config.json").write_text(json.dumps(changed(self.config, site, bad)))
        try:
            load(self.folder, engine, threads=1).close()
        except ModelLoadError as refused:
            return str(refused)
        return ""

    def check(self, site: Site, bad: Any) -> str:
        """Loads with both engines; returns the fault that was found, or ""."""
        for engine in ("hf", "mlx"):
            case = f"{engine}: {'.'.join(site)} = {'nothing' if bad is ABSENT else json.dumps(bad)}"
            try:
                words = self.outcome(site, bad, engine)
            except Exception as error:  # noqa: BLE001  # the sweep reports every fault, not only the first
                return f"{case}: {type(error).__name__}: {error}"
            if words and not ("config.json" in words and any(name in words for name in site) and "\n" not in words):
                return f"{case}: the field is not named: {words}"
            if "it must be" in words:
                with pytest.raises(ModelLoadError) as refused:
                    import_model(self.folder)
                if str(refused.value) != words:
                    return f"{case}: import has other words: {refused.value}"
        return ""


@pytest.fixture
def spoiled(request: pytest.FixtureRequest, shelf: Path, tmp_path: Path) -> Spoiled:
    return Spoiled(request.param, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", ["llama", "gemma3"], indirect=True)
def test_a_sample_of_bad_values_loads_or_is_refused_with_the_field(spoiled: Spoiled) -> None:
    cases = random.Random(20_261_124).sample(spoiled.cases(), SAMPLE)
    assert [fault for case in cases if (fault := spoiled.check(*case))] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spoiled", ARCHITECTURES, indirect=True)
def test_every_field_with_every_bad_value_loads_or_is_refused_with_the_field(spoiled: Spoiled) -> None:
    """A field of several architectures meets each value in one of them; all have the same number of cases."""
    assert [fault for case in spoiled.share() if (fault := spoiled.check(*case))] == []


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": -1}},
            "rope_theta is -1; it must be a number from 1",
        ),
        ("llama", {"rms_norm_eps": 1.5}, "rms_norm_eps is 1.5; it must be a number above 0"),
        ("llama", {"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ("llama", {"hidden_act": "silly"}, 'hidden_act is "silly"; it must be "silu" or'),
        ("llama", {"pad_token_id": 1000}, "pad_token_id is 1,000; it must be below vocab_size 1,000"),
        ("llama", {"return_dict": False}, "return_dict is false; it must be true"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true; it must be false"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for num_hidden_layers 4"),
        ("gemma3", {"sliding_window": None}, "sliding layers, but sliding_window is null"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_parameters and rope_scaling contradict each other",
        ),
    ],
)
def test_invalid_values_are_refused_by_both_backends_and_by_import(
    name: str, change: dict[str, Any], words: str, shelf: Path, tmp_path: Path
) -> None:
    # given
    folder = Spoiled(name, tmp_path)
    (folder.folder / "config.json").write_text(json.dumps(folder.config | change))
    # when, then
    for act in (lambda: load(folder.folder, "hf"), lambda: load(folder.folder, "mlx"), lambda: import_model(folder.folder)):
        with pytest.raises(ModelLoadError) as refused:
            act()
        assert str(refused.value).startswith(f"{folder.folder}/config.json: ")
        assert words in str(refused.value)


@pytest.mark.parametrize("engine", ["hf", "mlx"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_token_ids_outside_the_vocabulary_are_reported_as_ignored(file: str, engine: str, shelf: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_path("llama"), tmp_path / "model"))
    config = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(config | {"eos_token_id": [2, 1_000_000_000]}))
    with load(folder, engine) as model:
        assert model.eos_token_ids == (2,)
        said = f"{file}: eos_token_id 1,000,000,000 is ignored: the vocabulary has 1,000 tokens"
        assert said in model.info.warnings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eos_token": 3}, "eos_token is 3; it must be a text, or a token, or null"),
        ({"add_bos_token": "yes"}, 'add_bos_token is "yes"; it must be true or false, or null'),
        ({"chat_template": {"a": 1}}, 'chat_template is {"a": 1}; it must be a text, or a list'),
    ],
)
def test_an_invalid_tokenizer_config_is_refused(change: dict[str, Any], words: str, shelf: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_path("llama"), tmp_path / "model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | change))
    for act in (lambda: load(folder, "hf"), lambda: import_model(folder)):
        with pytest.raises(ModelLoadError) as refused:
            act()
        assert f"{folder / 'tokenizer_config.json'}: {words}" in str(refused.value)


@pytest.mark.parametrize("engine", ["hf", "mlx"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 2}, "hold model.layers.2."),
        ({"num_hidden_layers": 4}, "lack model.layers.3."),
        ({"intermediate_size": 64}, r"is .*(64|128).* in the weights and .*64.* by config\.json"),
    ],
)
def test_weights_that_do_not_match_the_config_are_refused_with_the_tensor(
    change: dict[str, Any], words: str, engine: str, shelf: Path, tmp_path: Path
) -> None:
    folder = Spoiled("llama", tmp_path)
    (folder.folder / "config.json").write_text(json.dumps(folder.config | change))
    with pytest.raises(ModelLoadError, match=words) as refused:
        load(folder.folder, engine)
    said = str(refused.value)
    assert "ignore_mismatched_sizes" not in said
    assert "\n" not in said
    assert next(iter(change)) in said
    assert "model.layers." in said


@pytest.mark.parametrize("engine", ["hf", "mlx"])
@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, RuntimeError])
def test_an_exception_of_the_progress_callback_is_raised_unchanged(engine: str, kind: type[Exception]) -> None:
    raised = kind("mine")

    def broken(progress: LoadProgress) -> None:
        raise raised

    with pytest.raises(kind) as caught:
        load(tiny_path("llama"), engine, on_progress=broken)
    assert caught.value is raised
