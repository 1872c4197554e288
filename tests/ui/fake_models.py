"""The fake workbench's models: on a shelf in memory, and downloads with the progress that the test sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import fields, replace

from runtime import ComparedSide, ModelComparison, TokenRun
from tests.ui.fake_state import NOW, QWEN, FakeState
from ui import (
    AppSettings,
    BackendChoice,
    Backup,
    Bits,
    ComparisonChoice,
    DownloadState,
    DownloadView,
    FitView,
    GgufPlan,
    HubFind,
    LoadChoice,
    LoadPlan,
    ModelChoice,
    ModelPlan,
    ModelsChanged,
    NoRoomRefusal,
    Offer,
    OnCompared,
    OnTransfer,
    PathComparison,
    Refusal,
    ServerModel,
    SettingsView,
    ShelfModel,
    StatusChanged,
    TokenView,
)


class _Group:
    def __init__(self, bench: FakeState) -> None:
        self._bench = bench


class FakeModels(_Group):
    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        self._bench.note("load_plan", name, choice)
        chosen = self._bench.own.get(name, LoadChoice()) if choice is None else choice
        fit = self._bench.shelf_fit
        if fit is not None and chosen.context is not None:
            fit = replace(fit, context=chosen.context, kv=fit.kv * chosen.context // fit.context)
        forms = self._bench.forms if fit is not None and fit.engine == "hf" else ()
        return LoadPlan(chosen, fit, 8192, forms, set_weights=self._bench.set_weights)

    async def open(self, name: str, choice: LoadChoice) -> None:
        self._bench.note("open_model", name, choice)
        self._bench.own[name] = choice

    async def remember_context(self, name: str, context: int) -> None:
        self._bench.note("remember_context", name, context)
        self._bench.own[name] = LoadChoice(context)

    async def stop_loading(self) -> None:
        self._bench.note("stop_loading")

    async def reload(self) -> None:
        self._bench.note("reload_model")
        self._bench.held = replace(self._bench.held, needs_reload=False)

    async def grow_context(self) -> None:
        self._bench.note("grow_context")

    async def list(self) -> Sequence[ModelChoice]:
        self._bench.note("models")
        return self._bench.choices

    async def choose(self, source: str) -> None:
        self._bench.note("choose_model", source)
        self._bench.choices = [replace(choice, loaded=choice.source == source) for choice in self._bench.choices]

    def backends(self) -> Sequence[BackendChoice]:
        return self._bench.engines

    async def choose_backend(self, name: str) -> None:
        self._bench.note("choose_backend", name)
        self._bench.engines = [replace(engine, chosen=engine.name == name) for engine in self._bench.engines]


class FakeShelf(_Group):
    async def list(self) -> Sequence[ShelfModel]:
        self._bench.note("model_shelf")
        self._bench.tell_downloads()
        return list(self._bench.on_shelf)

    async def verify(self, name: str, progress: OnTransfer) -> None:
        self._bench.note("verify_model", name)
        for done in (100_000_000, 300_000_000):
            await self._bench.pause()
            progress(done, 638_000_000)
        if self._bench.problem:
            raise Refusal(self._bench.problem)

    async def remove(self, name: str) -> int:
        self._bench.note("remove_model", name)
        gone = next(model for model in self._bench.on_shelf if model.name == name)
        self._bench.on_shelf.remove(gone)
        self._bench.emit(ModelsChanged())
        return 0 if gone.linked else gone.size

    async def add_folder(self, path: Path) -> str:
        self._bench.note("add_model_folder", path)
        self._bench.on_shelf.append(ShelfModel(path.name, path.name, str(path), 10_000_000, "link", linked=True))
        self._bench.emit(ModelsChanged())
        return path.name

    async def connect(self, server: ServerModel) -> str:
        self._bench.note("connect", server)
        if self._bench.asking is not None:
            await self._bench.asking.wait()
        if self._bench.problem:
            raise Refusal(self._bench.problem)
        name = server.name or "server"
        self._bench.on_shelf.append(ShelfModel(name, name, "", 0, "on 127.0.0.1:8000", kind="server"))
        self._bench.emit(ModelsChanged())
        return f"{name} is on the list"

    async def plan_gguf(self, path: Path) -> GgufPlan:
        self._bench.note("plan_gguf", path)
        return GgufPlan(path, *self._bench.gguf)

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        self._bench.note("import_gguf", path, keep_quantised)
        for done in range(3):
            await self._bench.pause()
            progress(done, 3)
        return path.stem

    async def plan(self, wanted: str) -> ModelPlan:
        self._bench.note("plan_model", wanted)
        if self._bench.asking is not None:
            await self._bench.asking.wait()
        return self._bench.plan

    async def quantise(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        self._bench.note("quantise_model", name, bits)
        for done in (25, 50):
            await self._bench.pause()
            progress(done, 100)
        if self._bench.problem:
            raise Refusal(self._bench.problem)
        return f"{name}-{bits}bit"

    async def hub_token(self) -> TokenView:
        return TokenView(bool(self._bench.kept_token), "https://huggingface.co")

    async def keep_hub_token(self, token: str) -> TokenView:
        if self._bench.problem:
            raise Refusal(self._bench.problem)
        self._bench.kept_token = token
        return await self.hub_token()

    async def forget_hub_token(self) -> TokenView:
        self._bench.kept_token = ""
        return await self.hub_token()

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        self._bench.note("fit", context)
        return None if plan.fit is None else replace(plan.fit, context=context, kv=plan.fit.kv * context // plan.fit.context)

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        self._bench.note("search_hub", words)
        if self._bench.asking is not None:
            await self._bench.asking.wait()
        return self._bench.finds

    async def offers(self) -> Sequence[Offer]:
        return list(self._bench.proposed)

    def download(self, wanted: str) -> None:
        self._bench.calls.append(("download", wanted))
        repository = wanted.partition("@")[0]
        held = self._bench.downloads.get(repository, DownloadView(repository))
        self._bench.show_download(replace(held, state=DownloadState.RUNNING, note=""))

    async def pause_download(self, repository: str) -> None:
        self._bench.note("pause_download", repository)
        self._bench.show_download(replace(self._bench.downloads[repository], state=DownloadState.PAUSED, rate=0.0))

    async def cancel_download(self, repository: str) -> int:
        self._bench.note("cancel_download", repository)
        gone = self._bench.downloads.pop(repository)
        self._bench.tell_downloads()
        return gone.done


class FakeSettings(_Group):
    async def hints(self) -> frozenset[str]:
        return self._bench.left_hints

    async def dismiss_hint(self, name: str) -> bool:
        self._bench.note("dismiss_hint", name)
        held, self._bench.left_hints = self._bench.left_hints, self._bench.left_hints - {name}
        return name in held

    @property
    def values(self) -> AppSettings:
        return self._bench.held.values

    async def view(self) -> SettingsView:
        return self._bench.held

    async def change(self, name: str, value: object) -> SettingsView:
        self._bench.note("change_setting", name, value)
        assert name in {f.name for f in fields(AppSettings)}
        values = replace(self._bench.held.values, **{name: value})
        self._bench.held = replace(
            self._bench.held, values=values, needs_reload=self._bench.held.needs_reload or name not in NOW
        )
        return self._bench.held

    async def back_up(self) -> Backup:
        self._bench.note("back_up")
        if self._bench.slow_backup is not None:
            await self._bench.slow_backup.wait()
        return Backup("/data/elsewise/backups/sessions.by-hand.2026-11-22.db", 12_000_000)

    async def verify_data(self) -> Sequence[str]:
        self._bench.note("verify_data")
        return self._bench.damage


class FakeServer(_Group):
    address = ""

    async def start(self, port: int) -> str:
        self._bench.note("start_server", port)
        if port == 8081:
            raise Refusal("port 8081 cannot be used: Address already in use; choose another one")
        self.address = f"http://127.0.0.1:{port}/v1"
        self._bench.emit(StatusChanged(replace(self._bench.status, serving=self.address)))
        return self.address

    async def stop(self) -> None:
        self._bench.note("stop_server")
        self.address = ""
        self._bench.emit(StatusChanged(self._bench.status))


class FakeComparison(_Group):
    @property
    def keeps_model(self) -> bool:
        return self._bench.keeps_model

    async def choices(self, session_id: int) -> Sequence[ComparisonChoice]:
        self._bench.note("comparison_choices", session_id)
        return self._bench.comparison_choices

    async def compare(
        self, session_id: int, choice: ComparisonChoice, progress: OnCompared, *, anyway: bool = False, kl_of_all: bool = False
    ) -> PathComparison:
        self._bench.note("compare_with", session_id, choice.source, anyway)
        self._bench.wanted_all.append(kl_of_all)
        if self._bench.short_of_room and not anyway:
            raise NoRoomRefusal("Qwen3 would take about 4.2 GB beside the model in use; 1.1 GB are free")
        progress("loading Qwen3", 0, 0)
        for done in range(3):
            await self._bench.pause()
            progress("comparing", done + 1, 3)
        found = self.made(session_id)
        return replace(found, kl_from=0) if kl_of_all else found

    async def keep_model(self, keep: bool) -> None:
        self._bench.note("keep_model", keep)
        self._bench.keeps_model = keep

    def made(self, session_id: int) -> PathComparison:
        """Every token is a span, every third a disagreement; aligned by bytes, a span is two tokens of the first model."""
        turns = self._bench.views[session_id].turns
        run = TokenRun.concat([turn.run for turn in turns])
        n = len(run)
        moved = np.resize(np.array(self._bench.moved, np.float32), n)
        columns = {name: getattr(run, name).copy() for name in ("logprob", "rank", "top_ids", "top_logprobs")}
        tops = tuple(b" maybe" if i % 3 == 0 else b" same" for i in range(n))
        width = 2 if self._bench.by_bytes else 1
        borders = np.append(np.arange(0, n, width), n).astype(np.int64)
        left = ComparedSide("SmolLM2", run, borders, (b" same",) * n)
        fields = {name: getattr(run, name) for name in ("ids", "token_bytes", "texts", "entropy", "covered_mass")}
        fields |= {name: getattr(run, name) for name in ("origin", "finish", "draw")}
        other = TokenRun(**fields, **(columns | {"logprob": columns["logprob"] + moved}))
        right = ComparedSide("Qwen3", other, borders, tops)
        kl = None if self._bench.by_bytes else np.where(np.arange(n) < self._bench.kl_from, np.nan, np.linspace(0, 2, n))
        found = ModelComparison(left, right, "bytes" if self._bench.by_bytes else "tokens", kl)
        spans, at = {}, 0
        for turn in turns:
            spans[turn.node_id] = np.arange(at, at + len(turn.run)) // width
            at += len(turn.run)
        return PathComparison(session_id, "SmolLM2 135M Instruct", QWEN.label, found, spans, n, self._bench.kl_from)
