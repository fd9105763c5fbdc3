"""What the manifests promise of images, namespaces, links beside each other and drained nodes, judged by what
kubectl would send."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.deployed import FOLDERS, K8S, ROOT, of_kind, rendered

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
Documents = Sequence[Mapping[str, Any]]


def pods(documents: Documents) -> dict[str, Any]:
    """By the name of its Deployment, each Pod's template."""
    return {d["metadata"]["name"]: d["spec"]["template"] for d in of_kind(documents, "Deployment")}


def selectors(found: Any) -> Iterator[dict[str, str]]:
    """The labels of every selector of Pods, wherever in a document it stands."""
    if isinstance(found, list):
        for item in found:
            yield from selectors(item)
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("selector", "labelSelector"):
                yield value["matchLabels"]
            else:
                yield from selectors(value)


def documented(link: str, folder: str, tmp_path: Path) -> list[dict[str, Any]]:
    """What kubectl would send for a second link, by the kustomization that k8s/kustomization.yaml shows, on
    top of `folder`."""
    lines = (K8S / "kustomization.yaml").read_text().splitlines()
    shown = yaml.safe_load("\n".join(line[4:] for line in lines if line.startswith("#   ")))
    assert shown["resources"] == ["../../base"]
    text = yaml.safe_dump({**shown, "resources": [f"../../{folder}"]}).replace("eu", link)
    here = tmp_path / "k8s" / "overlays" / link
    shutil.copytree(K8S, tmp_path / "k8s", dirs_exist_ok=True)
    here.mkdir()
    (here / "kustomization.yaml").write_text(text)
    return rendered(str(here))


def claim_of_one_node(documents: Documents, pod: Mapping[str, Any]) -> bool:
    modes = {
        d["metadata"]["name"]: d["spec"]["accessModes"]
        for d in documents
        if d["kind"] == "PersistentVolumeClaim"
    }
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    return any("ReadWriteMany" not in modes[name] for name in claims)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_image_has_a_tag_and_is_pulled_unless_it_is_there(folder: str) -> None:
    for pod in pods(rendered(folder)).values():
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"verbatim:{VERSION}"
        # By default what has a tag of its own is pulled only where it is missing.
        assert container.get("imagePullPolicy", "IfNotPresent") == "IfNotPresent"


def test_executors_run_where_as_what_and_with_the_image_that_their_driver_has() -> None:
    spark = (K8S / "overlays/executors/spark-defaults.conf").read_text()
    expected: dict[str, dict[str, Any]] = {
        "spark.kubernetes.namespace": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        "spark.kubernetes.authenticate.executor.serviceAccountName": {
            "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}
        },
        "spark.kubernetes.container.image": {"value": f"verbatim:{VERSION}"},
    }
    for name, source in expected.items():
        assert name not in spark
        for pod in pods(rendered("overlays/executors")).values():
            (container,) = pod["spec"]["containers"]
            (variable,) = (
                found[1]
                for arg in container["args"]
                if (found := re.fullmatch(rf"--conf={re.escape(name)}=\$\((\w+)\)", arg))
            )
            (value,) = (v for v in container["env"] if v["name"] == variable)
            assert value == {"name": variable, **source}


@pytest.mark.parametrize("folder", ["base", *FOLDERS[1:]])
def test_two_links_in_one_namespace_select_each_its_own_pods(folder: str, tmp_path: Path) -> None:
    links = {link: documented(link, folder, tmp_path) for link in ("eu", "us")}
    links["first"] = rendered("." if folder == "base" else folder)
    all_pods = [
        (link, name, pod["metadata"]["labels"])
        for link, documents in links.items()
        for name, pod in pods(documents).items()
    ]
    names = [(d["kind"], d["metadata"]["name"]) for link in ("eu", "us") for d in links[link]]
    assert {name for name in names if names.count(name) > 1} == {("Namespace", "replication")}
    for link, documents in links.items():
        for document in documents:
            for selector in selectors(document):
                chosen = [(at, name) for at, name, labels in all_pods if selector.items() <= labels.items()]
                (one,) = chosen
                assert one[0] == link
                name = document["metadata"]["name"]
                assert one[1] == name


def test_a_link_with_a_prefix_scales_its_own_deployments(tmp_path: Path) -> None:
    documents = documented("eu", "overlays/autoscaling", tmp_path)
    scaled = {d["spec"]["targetRef"]["name"] for d in of_kind(documents, "VerticalPodAutoscaler")}
    assert scaled == pods(documents).keys()


@pytest.mark.parametrize("folder", ["base", *FOLDERS[1:]])
def test_all_of_a_link_is_in_the_namespace_that_its_kustomization_names(folder: str, tmp_path: Path) -> None:
    documents = documented("eu", folder, tmp_path)
    for document in documents:
        if document["kind"] == "Namespace":
            assert document["metadata"]["name"] == "replication"
        else:
            assert document["metadata"]["namespace"] == "replication"
        for subject in document.get("subjects", []):
            assert subject == {"kind": "ServiceAccount", "name": "eu-verbatim", "namespace": "replication"}
    assert not re.search(r"namespace\W+verbatim\b", yaml.safe_dump_all(documents))
    for pod in pods(documents).values():
        account = pod["spec"].get("serviceAccountName")
        assert account == ("eu-verbatim" if "executors" in folder else None)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_node_can_be_drained(folder: str) -> None:
    """A Pod's successor may be placed on another node, and no budget keeps a Pod that its successor has to
    wait for."""
    documents = rendered(folder)
    budgets = {d["metadata"]["name"]: d["spec"] for d in of_kind(documents, "PodDisruptionBudget")}
    deployments = {d["metadata"]["name"]: d["spec"] for d in of_kind(documents, "Deployment")}
    for name, spec in deployments.items():
        pod = spec["template"]["spec"]
        for affinity in pod.get("affinity", {}).values():
            assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
        if claim_of_one_node(documents, pod):
            # Two Pods on one node's volume: the successor of the first is not ready before the second has
            # gone.
            assert pod["affinity"]["podAffinity"]
            assert name not in budgets
        else:
            assert budgets.pop(name) == {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": spec["selector"],
            }
    assert budgets == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_both_instances_of_an_application_fit_a_small_node(folder: str) -> None:
    """Two cores and 8 GiB, of which a node's own Pods and Kubernetes take their part."""
    requests = [
        pod["spec"]["containers"][0]["resources"]["requests"] for pod in pods(rendered(folder)).values()
    ]
    assert 2 * sum(float(r["cpu"].removesuffix("m")) for r in requests) <= 1250
    assert 2 * sum(mib(r["memory"]) for r in requests) <= 6 * 1024


def mib(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]
