"""What MirrorMaker 2 was told, however that is written: a properties file, a connector's JSON, or Strimzi's
KafkaMirrorMaker2. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

from common.config.client_properties import java_properties
from common.errors import SettingsError

CLIENTS = ("consumer", "producer", "admin")
_SOURCE_CONNECTOR = "MirrorSourceConnector"
_CHECKPOINT_CONNECTOR = "MirrorCheckpointConnector"
_HEARTBEAT_CONNECTOR = "MirrorHeartbeatConnector"
_STRIMZI_OFFSETS = "mirrormaker2-cluster-offsets"
_CONNECTORS = (_SOURCE_CONNECTOR, _CHECKPOINT_CONNECTOR, _HEARTBEAT_CONNECTOR)


@dataclass
class Mirror:
    """What is copied from one cluster to another. `source` and `target` are their aliases; `clients` the
    properties of each one's clients (alias -> name -> value), those of one kind under `consumer.NAME`;
    `config` the connectors' own settings, with their names there; `notes` what could not be read. `offsets`:
    the topic at the target in which its positions are, and `connector` under whose name; empty where that is
    not said."""

    source: str
    target: str
    clients: dict[str, dict[str, str]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    offsets: str = ""
    connector: str = _SOURCE_CONNECTOR

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


def read(text: str, label: str) -> list[Mirror]:
    """Raises SettingsError, with the label, for what is none of these."""
    if text.lstrip().startswith(("{", "[")):
        return _connectors(_parsed(orjson.loads, text, label), label)
    if _is_strimzi(text):
        documents = _parsed(lambda given: list(yaml.safe_load_all(given)), text, label)
        found = [one for one in documents if isinstance(one, dict) and one.get("kind") == "KafkaMirrorMaker2"]
        return [mirror for one in found for mirror in _strimzi(one.get("spec") or {}, label)]
    return _properties(text, label)


def _parsed(parse: Any, text: str, label: str) -> Any:
    try:
        return parse(text)
    except (orjson.JSONDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{label}: {str(error).splitlines()[0]}") from None


def _is_strimzi(text: str) -> bool:
    return any(line.split("#")[0].split() == ["kind:", "KafkaMirrorMaker2"] for line in text.splitlines())


# mm2.properties


def _properties(text: str, label: str) -> list[Mirror]:
    """One for each flow that is enabled. A setting of a flow wins over one of all."""
    given = {name: value for name, value, _ in java_properties(text)}
    aliases = _listed(given.get("clusters", ""))
    if not aliases:
        raise SettingsError(
            f"{label}: neither MirrorMaker 2's properties (clusters = ...), nor a connector's JSON, nor a KafkaMirrorMaker2, nor "
            "a pipeline of K2K, nor kafka-reo's variables"
        )
    own = {alias: _below(given, f"{alias}.") for alias in aliases}
    flows = {f"{a}->{b}": (a, b) for a in aliases for b in aliases if a != b}
    common = {
        name: value
        for name, value in given.items()
        if name != "clusters" and not name.startswith(tuple(f"{prefix}." for prefix in (*aliases, *flows)))
    }
    found = []
    for flow, (source, target) in flows.items():
        config = common | _below(given, f"{flow}.")
        if config.pop("enabled", "false").strip().lower() != "true":
            continue
        mirror = Mirror(source, target, {alias: dict(own[alias]) for alias in (source, target)})
        of_target = own[target].get("offset.storage.topic", f"mm2-offsets.{source}.internal")
        mirror.offsets = config.get("offset.storage.topic", of_target)
        _share_out(mirror, config)
        found.append(mirror)
    if not found:
        raise SettingsError(f"{label}: no flow is enabled (A->B.enabled = true)")
    return found


def _below(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


_OF_CLIENTS = ("security.", "sasl.", "ssl.", "client.", "bootstrap.servers")


def _share_out(mirror: Mirror, config: Mapping[str, str]) -> None:
    """Put client properties among connectors' settings where they belong. What a cluster itself says wins."""
    for name, value in config.items():
        side, _, rest = name.partition(".")
        if side in ("source", "target") and rest.startswith(("cluster.", *(f"{kind}." for kind in CLIENTS))):
            alias = mirror.source if side == "source" else mirror.target
            mirror.clients.setdefault(alias, {}).setdefault(rest.removeprefix("cluster."), value)
        elif name.startswith(("consumer.", "producer.", "admin.")):
            # Records are read at the source and written at the target.
            for alias in (mirror.source, mirror.target):
                mirror.clients.setdefault(alias, {}).setdefault(name, value)
        elif name.startswith(_OF_CLIENTS):
            for alias in (mirror.source, mirror.target):
                mirror.clients.setdefault(alias, {}).setdefault(name, value)
        else:
            mirror.config[name] = value


# a connector's JSON


def _connectors(given: Any, label: str) -> list[Mirror]:
    """Connectors between the same two clusters are one mirror: one copies, another one translates groups."""
    mirrors: dict[tuple[str, str], Mirror] = {}
    for one in given if isinstance(given, list) else [given]:
        if not isinstance(one, dict):
            raise SettingsError(f"{label}: not a connector")
        config = one.get("config", one)
        kind = str(config.get("connector.class", "")).rpartition(".")[2]
        if kind not in _CONNECTORS:
            raise SettingsError(f"{label}: connector.class is {kind or 'missing'}, none of MirrorMaker 2's")
        named = {"name": one["name"], **config} if "name" in one else config
        _add_connector(mirrors, {str(name): str(value) for name, value in named.items()}, kind)
    return list(mirrors.values())


def _add_connector(mirrors: dict[tuple[str, str], Mirror], config: dict[str, str], kind: str) -> None:
    source = config.pop("source.cluster.alias", "source")
    target = config.pop("target.cluster.alias", "target")
    config.pop("connector.class", None)
    name = config.pop("name", "")
    mirror = mirrors.setdefault((source, target), Mirror(source, target))
    _share_out(mirror, config)
    if kind == _SOURCE_CONNECTOR:
        mirror.connector = name
        mirror.config.setdefault("topics", ".*")


# Strimzi


def _strimzi(spec: Mapping[str, Any], label: str) -> Iterator[Mirror]:
    """Of both of its forms: clusters by alias; since v1, a source in each mirror and a target for all."""
    clusters = {str(one.get("alias")): one for one in spec.get("clusters") or []}
    if spec.get("target"):
        clusters[str(spec["target"].get("alias"))] = spec["target"]
    for given in spec.get("mirrors") or []:
        if given.get("source"):
            clusters[str(given["source"].get("alias"))] = given["source"]
        source = str(given.get("sourceCluster") or (given.get("source") or {}).get("alias"))
        target = str(given.get("targetCluster") or (spec.get("target") or {}).get("alias"))
        if source not in clusters or target not in clusters:
            raise SettingsError(f"{label}: a mirror from {source} to {target}, of which one is no cluster")
        mirror = Mirror(source, target, connector=f"{source}->{target}.{_SOURCE_CONNECTOR}")
        at, config = clusters[target], clusters[target].get("config") or {}
        mirror.offsets = at.get("offsetStorageTopic") or config.get("offset.storage.topic", _STRIMZI_OFFSETS)
        for alias in (source, target):
            mirror.clients[alias] = _strimzi_client(clusters[alias], mirror)
        for theirs, name in (
            ("topicsPattern", "topics"),
            ("topicsExcludePattern", "topics.exclude"),
            ("topicsBlacklistPattern", "topics.exclude"),
            ("groupsPattern", "groups"),
            ("groupsExcludePattern", "groups.exclude"),
            ("groupsBlacklistPattern", "groups.exclude"),
        ):
            if given.get(theirs) is not None:
                mirror.config[name] = str(given[theirs])
        for connector in ("sourceConnector", "checkpointConnector", "heartbeatConnector"):
            said = given.get(connector) or {}
            config = {str(name): scalar(value) for name, value in (said.get("config") or {}).items()}
            if "tasksMax" in said:
                config["tasks.max"] = str(said["tasksMax"])
            _share_out(mirror, config)
        yield mirror


def _strimzi_client(cluster: Mapping[str, Any], mirror: Mirror) -> dict[str, str]:
    """What a client of it needs. Certificates and passwords lie in Secrets: that they are needed is noted."""
    alias = cluster.get("alias")
    found = {"bootstrap.servers": str(cluster.get("bootstrapServers", ""))}
    found |= {str(name): scalar(value) for name, value in (cluster.get("config") or {}).items()}
    tls, login = cluster.get("tls"), cluster.get("authentication") or {}
    kind = str(login.get("type", ""))
    sasl = {"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"}.get(kind)
    if sasl:
        found |= {"sasl.mechanism": sasl, "sasl.username": str(login.get("username", ""))}
        mirror.notes.append(f"{alias}: sasl.password, from {_secret(login.get('passwordSecret'))}")
    elif kind == "tls":
        where = _secret(login.get("certificateAndKey"))
        mirror.notes.append(f"{alias}: ssl.certificate.location and ssl.key.location, from {where}")
    elif kind == "custom":
        config = login.get("config") or {}
        found |= {str(name): scalar(value) for name, value in config.items()}
    elif kind:
        mirror.notes.append(f"{alias}: authentication of type {kind}; see docs: guides/security")
    if tls is not None:
        certificates = ", ".join(_secret(one) for one in tls.get("trustedCertificates") or [])
        mirror.notes.append(f"{alias}: ssl.ca.location, from {certificates or 'the system'}")
    by_sasl = sasl or (kind == "custom" and login.get("sasl") is True)
    if by_sasl or kind == "tls" or tls is not None:
        protocol = ("SASL_" if by_sasl else "") + ("SSL" if tls is not None or kind == "tls" else "PLAINTEXT")
        found.setdefault("security.protocol", protocol)
    return found


def _secret(given: Mapping[str, Any] | None) -> str:
    given = given or {}
    keys = [str(given[key]) for key in ("password", "certificate", "key", "pattern") if given.get(key)]
    return f"the Secret {given.get('secretName', '?')} ({', '.join(keys) or 'its entries'})"


def scalar(value: Any) -> str:
    """Of YAML, as a properties file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
