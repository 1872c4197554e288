"""Looking up a repository, weighing it, fetching it, putting it on the shelf. In the child process only."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runtime.adapters.folder import is_on_shelf
from runtime.errors import DownloadError, ModelLoadError
from runtime.hub.answers import token_to_send
from runtime.hub.choosing import adapter_files, check_kind, check_suitable, holds, small_files, weights_to_take
from runtime.hub.installing import install
from runtime.hub.kept import Kept, kept_bytes
from runtime.hub.listing import Listing, look_up
from runtime.hub.plan import DownloadPlan, HubFile, HubId, Kind, OnDownload, shelf_name
from runtime.hub.taking import Sleep, Taking
from runtime.hub.telling import Telling
from runtime.loading.check import INDEX, open_folder, read_json
from runtime.loading.describing import describe
from runtime.loading.paths import ADAPTER_CONFIG, made_models_dir, models_dir, shelf_path

_SPARE_BYTES = 256 << 20


class Download:
    """One repository.

    Args:
        hub_id: Which.
        say: Hears how far it is.
        wanted: What it must hold; None for either.
        token: To ask with; huggingface_hub's own choice by default.
        endpoint: The hub's address; None for huggingface_hub's own choice.
        sleep: Waits some seconds.

    Raises:
        DownloadError: The token cannot be one ("denied").
    """

    def __init__(
        self,
        hub_id: HubId,
        say: OnDownload,
        *,
        wanted: Kind | None = None,
        token: str = "",
        endpoint: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._hub_id = hub_id
        self._wanted = wanted
        self._endpoint = endpoint
        self._token = token_to_send(token)
        self._telling = Telling(say)
        self._taking = Taking(self._telling, endpoint, self._token, sleep)

    def plan(self, scratch: Path) -> DownloadPlan:
        """What would be fetched, at the commit of this moment. Configuration and index are read for it, nothing else.

        Args:
            scratch: A folder for those.

        Raises:
            DownloadError: It cannot be looked up, or is nothing that Elsewise runs.
        """
        self._telling.state("look up")
        listing = look_up(self._hub_id, self._endpoint, self._taking.wait, self._token)
        kind = holds(listing.files)
        check_kind(str(self._hub_id), kind, self._wanted)
        if kind == "model":
            small = small_files(listing)
            read = self._read(listing, small, scratch)
            config = read["config.json"]
            check_suitable(str(self._hub_id), config)
            files, backends = (*small, *weights_to_take(listing, read.get(INDEX))), describe(config).backends
        else:
            files, backends = adapter_files(listing), ("hf", "mlx")
            config = self._read(listing, files, scratch)[ADAPTER_CONFIG]
        name = shelf_name(self._hub_id.repository, listing.commit)
        self._listing = listing
        return DownloadPlan(
            repository=self._hub_id.repository,
            revision=self._hub_id.revision,
            commit=listing.commit,
            files=files,
            left=tuple(sorted(listing.files.keys() - {file.name for file in files})),
            kept=sum(kept_bytes(self._hub_id.repository, files)),
            free=_free(),
            config=config,
            here=name if _is_here(name, kind) else "",
            backends=backends,
            kind=kind,
            context=describe(config).context if kind == "model" else None,
            licence=listing.licence,
        )

    def fetch(self, planned: Callable[[DownloadPlan], None] | None = None) -> str:
        """Fetches what is missing, and puts the model on the shelf.

        Args:
            planned: Hears what will be fetched.

        Returns:
            Its name there.

        Raises:
            DownloadError: With the cause, and what was kept. Nothing is on the shelf then that was not there before.
        """
        made_models_dir()
        with Kept(self._hub_id.repository) as kept:
            try:
                plan = self.plan(kept.folder)
                if planned is not None:
                    planned(plan)
                if plan.here:
                    kept.clear()
                    return plan.here
                kept.keep(plan)
                self._check_room(plan)
                self._telling.begin(plan.files, kept_bytes(plan.repository, plan.files))
                sums = self._taking.take(self._listing, plan.files, kept.folder)
                self._telling.state("install")
                install(plan, kept.folder, sums, self._endpoint)
            except DownloadError as fault:
                raise self._explained(fault, kept) from fault
            except ModelLoadError as fault:  # all of it is here, and cannot be put on the shelf
                here, repository = kept.bytes(), self._hub_id.repository
                what = f"{here:,} bytes are kept until: elsewise models remove {repository}"
                raise DownloadError(f"{self._hub_id}: {fault} ({what})", "unsuitable", here) from fault
            except OSError as fault:
                raise self._explained(DownloadError(str(fault), "space"), kept) from fault
            kept.clear()
            return plan.name

    def _read(self, listing: Listing, files: Iterable[HubFile], scratch: Path) -> dict[str, Mapping[str, Any]]:
        """The configuration and the index among some files, fetched."""
        small = [file for file in files if file.name in ("config.json", INDEX, ADAPTER_CONFIG)]
        self._taking.take(listing, small, scratch)
        read: dict[str, Mapping[str, Any]] = {}
        for file in small:
            path = scratch / f"{file.oid}.part"
            try:
                read[file.name] = read_json(path) or {}
            except ModelLoadError as fault:
                message = str(fault).replace(str(path), f"{listing.hub_id}/{file.name}")
                raise DownloadError(message, "unsuitable") from fault
        return read

    def _check_room(self, plan: DownloadPlan) -> None:
        needed = plan.bytes - plan.kept
        if needed + _SPARE_BYTES > plan.free:
            raise DownloadError(
                f"{needed / 1e9:,.2f} GB are still to be fetched into {models_dir()}, {plan.free / 1e9:,.2f} GB are free; "
                "free some space or set ELSEWISE_MODELS",
                "space",
            )

    def _explained(self, fault: DownloadError, kept: Kept) -> DownloadError:
        """With whose download it was, and what is here of it."""
        where, said, here = str(self._hub_id), str(fault), kept.bytes()
        said = said if said.startswith(self._hub_id.repository) else f"{where}: {said}"
        if fault.reason == "unsuitable":
            kept.clear()
            return DownloadError(said, fault.reason)
        if here:
            said += f" ({here:,} bytes are kept: the same command goes on with them)"
        return DownloadError(said, fault.reason, here)


def _free() -> int:
    folder = models_dir()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is_here(name: str, kind: Kind) -> bool:
    if kind == "adapter":
        return is_on_shelf(name)
    with contextlib.suppress(ModelLoadError):
        open_folder(shelf_path(name), backend="mlx")
        return True
    return False
