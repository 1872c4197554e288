"""The catalogue's entries, requested from a hub: each is planned at a commit; a missing one says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadPlan, HubId
from runtime.hub.download import RepositoryDownload
from runtime.shelf.catalogue import CatalogueModel, CatalogueVariant, catalogue
from tests.runtime.hub.conftest import Fetch, failed
from tests.runtime.hub.local_hub import Files, LocalHub, Request

EVERY = [(model, variant) for model in catalogue() for variant in model.variants]


def planned(hub: LocalHub, source: str, scratch: Path) -> DownloadPlan:
    return RepositoryDownload(HubId.parse(source), lambda _progress: None, endpoint=hub.address).plan(scratch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "variant"), EVERY, ids=[variant.source for _, variant in EVERY])
def test_every_entry_is_planned_at_a_commit(
    model: CatalogueModel, variant: CatalogueVariant, hub: LocalHub, tiny: Files, tmp_path: Path
) -> None:
    hub.tags = [f"license:{model.licence.lower()}"]
    commit = hub.add(variant.source, tiny | {"config.json": json.dumps(dict(variant.config)).encode()})
    plan = planned(hub, variant.source, tmp_path)
    assert (plan.repository, plan.commit, plan.kind) == (variant.source, commit, "model")
    assert plan.name == f"{variant.source}@{commit[:12]}"
    assert (plan.backends, plan.context, plan.licence) == (variant.backends, model.context, model.licence.lower())
    # and it is fetched at that commit even after the branch has moved
    hub.add(variant.source, tiny)
    assert planned(hub, f"{variant.source}@{plan.commit}", tmp_path).commit == commit


def test_the_error_for_a_missing_catalogue_entry_says_where_to_look(hub: LocalHub, fetch: Fetch) -> None:
    fault = failed(fetch, catalogue()[0].source)
    assert fault.reason == "missing"
    assert "gone or renamed" in str(fault)
    assert "elsewise models search SmolLM2-135M-Instruct" in str(fault)
    assert "elsewise models login" in str(fault)


def test_a_renamed_repository_is_found_by_its_old_name(hub: LocalHub, fetch: Fetch, tiny: Files, tmp_path: Path) -> None:
    """The hub redirects from the old name to the new one; the shelf lists the model under the requested name."""
    source = catalogue()[0].source
    commit = hub.add("org/new", tiny)

    def moved(request: Request) -> bool:
        if f"/{source}/" not in request.path:
            return False
        return request.answer(307, b"", Location=request.path.replace(f"/{source}/", "/org/new/"))

    hub.before.append(moved)
    assert fetch(source) == f"{source}@{commit[:12]}"


def test_the_error_for_a_gated_catalogue_entry_says_where_to_consent(hub: LocalHub, tmp_path: Path) -> None:
    source = catalogue()[0].source
    hub.before.append(lambda request: request.answer(403, b"", X_Error_Code="GatedRepo"))
    with pytest.raises(DownloadError, match=f"consent; give it on {hub.address}/{source}, then log in") as raised:
        planned(hub, source, tmp_path)
    assert raised.value.reason == "denied"
