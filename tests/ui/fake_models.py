"""The part of the fake workbench that is about the shelf of models and the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.ui.fake_setup import FakeSetups
from ui import (
    AdapterChoice,
    AdapterLine,
    Bits,
    Download,
    DownloadsChanged,
    DownloadState,
    FitView,
    GgufPlan,
    HubFind,
    LoadChoice,
    LoadPlan,
    ModelPlan,
    ModelsChanged,
    Offer,
    Refusal,
    SessionSetup,
    ShelfModel,
    TokenView,
    WeightsForm,
)
from ui.port import OnTransfer

FIT = FitView("hf", 8192, 1_200_000_000, 300_000_000, 700_000_000, 8_000_000_000, 5_000_000_000, 32_768)
PLAN = ModelPlan(
    repository="org/tiny",
    commit="4538886660382f4f1d1a",
    name="org/tiny@453888666038",
    files=[("config.json", 700), ("model.safetensors", 351_000_000)],
    size=351_000_700,
    disk=120_000_000_000,
    licence="apache-2.0",
    engines=("hf", "mlx"),
    context=40_960,
    fit=FIT,
)


class FakeModels(FakeSetups):
    """Keeps a shelf and downloads in memory; tests say how far a download is with `show_download`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_shelf = [
            ShelfModel(
                "smollm2", "SmolLM2-135M-Instruct", "/models/smollm2", 638_000_000, "float32, from GGUF", 8192, ("hf", "mlx"),
                fingerprint="f2f9db9051cdd5415756", loaded=True, convertible=True,
            ),
            ShelfModel(
                "org/qwen@abc", "org/qwen", "/models/org--qwen@abc", 335_000_000, "4 bit (mlx), download", 4096, ("mlx",)
            ),
        ]  # fmt: skip
        self.proposed = [
            Offer("SmolLM2 135M", "org/smol", 134_515_008, 269_000_000, "Apache-2.0", "trying things out", FIT),
            Offer("Qwen3 0.6B", "org/qwen3", 596_049_920, 1_192_000_000, "Apache-2.0", "thinking", FIT, best=True),
            Offer(
                "Llama 8B", "org/llama", 8_030_000_000, 16_060_000_000, "Llama 3.1", "long answers",
                replace(FIT, weights=32_000_000_000, longest=0), gated=True,
            ),
        ]  # fmt: skip
        self.plan = PLAN
        self.finds = [
            HubFind("org/tiny", "12 M parameters · 4 bit (mlx) · mit · 1,200 downloads last month"),
            HubFind("org/cuda", "7,000 M parameters · gptq", "its weights are quantised with gptq, which needs CUDA libraries"),
        ]
        self.shelf_fit: FitView | None = FIT
        self.forms: tuple[WeightsForm, ...] = (
            WeightsForm("float32"), WeightsForm("float16"), WeightsForm("int8", "27.93, float32 27.66 (+1.0 %)"),
        )  # fmt: skip
        self.set_weights = "auto"  # for all models
        self.gguf: tuple[int, int, bool, str] = (0, 538_000_000, False, "")  # of the next file: kept, float32, keeps, note
        self.own: dict[str, LoadChoice] = {}
        self.kept_token = ""
        self.problem = ""  # what the next verification finds
        self.downloads: dict[str, Download] = {}
        self.left_hints: frozenset[str] = frozenset()
        self.asking: asyncio.Event | None = None  # the hub waits for it

    def show_download(self, view: Download) -> None:
        """News of one."""
        self.downloads[view.repository] = view
        self.tell_downloads()

    def tell_downloads(self) -> None:
        self.emit(DownloadsChanged(tuple(self.downloads.values())))

    async def model_shelf(self) -> Sequence[ShelfModel]:
        self._note("model_shelf")
        self.tell_downloads()
        return list(self.on_shelf)

    async def verify_model(self, name: str, progress: OnTransfer) -> None:
        self._note("verify_model", name)
        for done in (100_000_000, 300_000_000):
            await self._pass()
            progress(done, 638_000_000)
        if self.problem:
            raise Refusal(self.problem)

    async def remove_model(self, name: str) -> int:
        self._note("remove_model", name)
        gone = next(model for model in self.on_shelf if model.name == name)
        self.on_shelf.remove(gone)
        self.emit(ModelsChanged())
        return 0 if gone.linked else gone.size

    async def add_model_folder(self, path: Path) -> str:
        self._note("add_model_folder", path)
        self.on_shelf.append(ShelfModel(path.name, path.name, str(path), 10_000_000, "link", linked=True))
        self.emit(ModelsChanged())
        return path.name

    async def plan_gguf(self, path: Path) -> GgufPlan:
        self._note("plan_gguf", path)
        return GgufPlan(path, *self.gguf)

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        self._note("import_gguf", path, keep_quantised)
        for done in range(3):
            await self._pass()
            progress(done, 3)
        return path.stem

    async def plan_model(self, wanted: str) -> ModelPlan:
        self._note("plan_model", wanted)
        if self.asking is not None:
            await self.asking.wait()
        return self.plan

    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        self._note("load_plan", name, choice)
        chosen = self.own.get(name, LoadChoice()) if choice is None else choice
        fit = self.shelf_fit
        if fit is not None and chosen.context is not None:
            fit = replace(fit, context=chosen.context, kv=fit.kv * chosen.context // fit.context)
        forms = self.forms if fit is not None and fit.engine == "hf" else ()
        return LoadPlan(chosen, fit, 8192, forms, set_weights=self.set_weights)

    async def open_model(self, name: str, choice: LoadChoice) -> None:
        self._note("open_model", name, choice)
        self.own[name] = choice

    async def remember_context(self, name: str, context: int) -> None:
        self._note("remember_context", name, context)
        self.own[name] = LoadChoice(context)

    async def quantise_model(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        self._note("quantise_model", name, bits)
        for done in (25, 50):
            await self._pass()
            progress(done, 100)
        if self.problem:
            raise Refusal(self.problem)
        return f"{name}-{bits}bit"

    async def hub_token(self) -> TokenView:
        return TokenView(bool(self.kept_token), "https://huggingface.co")

    async def keep_hub_token(self, token: str) -> TokenView:
        if self.problem:
            raise Refusal(self.problem)
        self.kept_token = token
        return await self.hub_token()

    async def forget_hub_token(self) -> TokenView:
        self.kept_token = ""
        return await self.hub_token()

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        self._note("fit", context)
        return None if plan.fit is None else replace(plan.fit, context=context, kv=plan.fit.kv * context // plan.fit.context)

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        self._note("search_hub", words)
        if self.asking is not None:
            await self.asking.wait()
        return self.finds

    async def offers(self) -> Sequence[Offer]:
        return list(self.proposed)

    def download(self, wanted: str) -> None:
        self.calls.append(("download", wanted))
        repository = wanted.partition("@")[0]
        held = self.downloads.get(repository, Download(repository))
        self.show_download(replace(held, state=DownloadState.RUNNING, note=""))

    async def pause_download(self, repository: str) -> None:
        self._note("pause_download", repository)
        self.show_download(replace(self.downloads[repository], state=DownloadState.PAUSED, rate=0.0))

    async def cancel_download(self, repository: str) -> int:
        self._note("cancel_download", repository)
        gone = self.downloads.pop(repository)
        self.tell_downloads()
        return gone.done

    async def get_adapter(self, session_id: int, wanted: str) -> SessionSetup:
        self._note("get_adapter", session_id, wanted)
        await self._pass()
        line = AdapterLine(AdapterChoice(f"/models/{wanted}", wanted), "lora, rank 8", loaded=True)
        return self._keep(session_id, adapters=[*self._held(session_id).adapters, line])

    async def hints(self) -> frozenset[str]:
        return self.left_hints

    async def dismiss_hint(self, name: str) -> bool:
        self._note("dismiss_hint", name)
        held, self.left_hints = self.left_hints, self.left_hints - {name}
        return name in held
