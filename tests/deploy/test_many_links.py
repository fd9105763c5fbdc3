"""The kustomization that the guide to many links shows: what kubectl would send of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import yaml

from common.app.links.folder import ENDINGS, OF_PROCESS
from tests.deploy.deployed import K8S, ROOT, of_kind, rendered

GUIDE = (ROOT / "docs/guides/many-links.md").read_text()


def shown(title: str) -> str:
    """The file that the guide shows under this name."""
    found = re.search(rf'^```yaml title="{re.escape(title)}"\n(.*?)^```$', GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_both_applications_have_the_folder_and_no_name_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    here = tmp_path / "k8s" / "overlays" / "links"
    (here / "links").mkdir(parents=True)
    (here / "kustomization.yaml").write_text(shown("kustomization.yaml"))
    (here / "links" / "orders.yaml").write_text(shown("links/orders.yaml"))
    documents = rendered(str(here))
    maps = {d["metadata"]["name"]: d["data"] for d in of_kind(documents, "ConfigMap")}
    assert maps["links"] == {"orders.yaml": shown("links/orders.yaml")}
    (settings,) = (data for name, data in maps.items() if name.startswith("verbatim-settings"))
    assert "APPLICATION_NAME" not in settings
    assert not settings.keys() & yaml.safe_load(maps["links"]["orders.yaml"]).keys()
    deployments = of_kind(documents, "Deployment")
    assert sorted(d["metadata"]["name"] for d in deployments) == ["deduplicator", "replicator"]
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {"name": "links", "mountPath": settings["LINKS"], "readOnly": True} in container[
            "volumeMounts"
        ]
        assert {"name": "links", "configMap": {"name": "links"}} in pod["volumes"]


def test_the_guide_tells_which_settings_are_the_process_and_which_files_count() -> None:
    assert all(f"`{name}`" in GUIDE for name in OF_PROCESS)
    assert all(f"`*{ending}`" in GUIDE for ending in ENDINGS)
