"""The part of the fake workbench that is about what a session is set to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.ui.fake_base import FakeBase
from ui import AdapterChoice, AdapterLine, AnswerFormat, Guess, ModelFacts, OptionView, Refusal, SessionSetup, TextFile

MODEL = ModelFacts(
    name="SmolLM2-135M-Instruct",
    fingerprint="3f2a9c51d07be8446a",
    architecture="LlamaForCausalLM",
    parameters=134_515_008,
    backend="hf",
    device="cpu",
    dtype="float32",
    context_length=8192,
    kv_bytes_per_token=46_080,
    warnings=("bfloat16 would be faster on this machine",),
)
DEFAULTS: dict[str, tuple[object, str]] = {
    "temperature": (0.8, "preset"),
    "top_k": (0, "default"),
    "top_p": (0.95, "preset"),
    "min_p": (0.05, "preset"),
    "typical_p": (1.0, "default"),
    "repetition_penalty": (1.1, "model"),
    "dry_multiplier": (0.0, "default"),
    "max_tokens": (1024, "preset"),
    "stop": ((), "default"),
    "seed": (None, "default"),
    "order": (("bias", "penalties", "temperature"), "default"),
    "logit_bias": ({}, "default"),
    "banned_tokens": ((), "default"),
}


class FakeSetups(FakeBase):
    """Keeps what sessions are set to in memory; `slow_checks` (if set) is waited for before a form is judged."""

    def __init__(self) -> None:
        super().__init__()
        self.setups: dict[int, SessionSetup] = {}
        self.loaded: ModelFacts | None = MODEL
        self.slow_checks: asyncio.Event | None = None

    def _held(self, session_id: int) -> SessionSetup:
        options = [OptionView(name, value, source) for name, (value, source) in DEFAULTS.items()]
        fresh = SessionSetup(session_id, options=options, presets={"Elsewise's own": False, "greedy": False, "mine": True})
        fresh = replace(fresh, default_preset="greedy")
        return replace(self.setups.get(session_id, fresh), model=self.loaded)

    def _keep(self, session_id: int, **changes: object) -> SessionSetup:
        self.setups[session_id] = replace(self._held(session_id), **changes)  # type: ignore[arg-type]  # fields by name
        return self._held(session_id)

    async def setup(self, session_id: int) -> SessionSetup:
        return self._held(session_id)

    async def set_option(self, session_id: int, name: str, value: object) -> SessionSetup:
        self._note("set_option", session_id, name, value)
        said = OptionView(name, value, "session", value) if value is not None else OptionView(name, *DEFAULTS[name])
        return self._keep(session_id, options=[said if o.name == name else o for o in self._held(session_id).options])

    async def choose_preset(self, session_id: int, name: str) -> SessionSetup:
        self._note("choose_preset", session_id, name)
        return self._keep(session_id, preset=name)

    async def save_preset(self, session_id: int, name: str) -> SessionSetup:
        self._note("save_preset", session_id, name)
        return self._keep(session_id, preset=name, presets={**self._held(session_id).presets, name: True})

    async def delete_preset(self, session_id: int, name: str) -> SessionSetup:
        self._note("delete_preset", session_id, name)
        left = {held: own for held, own in self._held(session_id).presets.items() if held != name}
        return self._keep(session_id, preset="", presets=left)

    async def set_system(self, session_id: int, text: str) -> SessionSetup:
        self._note("set_system", session_id, text)
        return self._keep(session_id, system=text)

    async def set_tools(self, session_id: int, source: str) -> SessionSetup:
        self._note("set_tools", session_id, source)
        return self._keep(session_id, tools=source)

    async def check_tools(self, source: str) -> tuple[Sequence[str], str]:
        self.calls.append(("check_tools", source))
        return (["weather"], "") if "weather" in source else ((), "the definitions are no JSON")

    async def set_format(self, session_id: int, answer_format: AnswerFormat) -> SessionSetup:
        self._note("set_format", session_id, answer_format)
        return self._keep(session_id, answer_format=answer_format)

    async def check_format(self, answer_format: AnswerFormat) -> str:
        self.calls.append(("check_format", answer_format))
        if self.slow_checks is not None:
            await self.slow_checks.wait()
        return (
            "the regex cannot be used: unclosed group"
            if answer_format.source.count("(") > answer_format.source.count(")")
            else ""
        )

    async def add_adapter(self, session_id: int, folder: str) -> SessionSetup:
        self._note("add_adapter", session_id, folder)
        if not Path(folder, "adapter_config.json").exists():  # noqa: ASYNC240  # a test may wait for it
            raise Refusal(f"{folder} holds no adapter")
        line = AdapterLine(AdapterChoice(folder, Path(folder).name), "lora, rank 8, 12 modules, 3.1 MB", loaded=True)
        return self._keep(session_id, adapters=[*self._held(session_id).adapters, line])

    async def set_adapters(self, session_id: int, stack: Sequence[AdapterChoice]) -> SessionSetup:
        self._note("set_adapters", session_id, tuple(stack))
        known = {line.choice.folder: line for line in self._held(session_id).adapters}
        return self._keep(session_id, adapters=[replace(known[choice.folder], choice=choice) for choice in stack])

    async def set_guess(self, session_id: int, guess: Guess) -> SessionSetup:
        self._note("set_guess", session_id, guess)
        return self._keep(session_id, guess=guess)

    async def pin_files(self, session_id: int, files: Sequence[TextFile]) -> SessionSetup:
        self._note("pin_files", session_id, tuple(files))
        return self._keep(session_id, files=tuple(files))

    async def score_draft(self, session_id: int, text: str, replaces: int | None = None) -> float | None:
        self.calls.append(("score_draft", session_id, text))
        if self.slow_checks is not None:
            await self.slow_checks.wait()
        return 3.1 * len(text.split())

    async def read_file(self, path: str) -> TextFile:
        self._note("read_file", path)
        data = Path(path).read_bytes()  # noqa: ASYNC240  # a test may wait for it
        if b"\0" in data:
            raise Refusal(f"{Path(path).name} is no text: byte {data.index(0)} of {len(data)} is 0")
        return TextFile(Path(path).name, data.decode())

    async def leave_out(self, session_id: int, text: str) -> int:
        self._note("leave_out", session_id, text)
        return 2

    async def grow_context(self) -> None:
        self._note("grow_context")

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        self._note("answer_call", session_id, node_id, results)
