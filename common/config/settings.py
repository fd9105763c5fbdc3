"""The settings of a link as everything else asks for them. Pure; they are read in
common/config/loading.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from common.config import client_properties, state_path, telemetry, topic_names
from common.config.client_properties import HIDDEN, LOGIN, Kind
from common.config.fields import PREFIX, Cluster, Fields
from common.errors import SettingsError

_SECRET_CONF = re.compile(
    r"secret|password|passphrase|token|credential|(access|account|shared|sas|api|private)[._-]?key",
    re.IGNORECASE,
)


def names_secret(text: str) -> bool:
    """Whether a Spark property, or a variable that is no setting, is called like a secret."""
    return _SECRET_CONF.search(text) is not None


@dataclass(frozen=True, slots=True)
class Policy:
    """`writes`: rights to write and alter are copied too. `read_only`: who may write at the source is denied
    it on the copy. `own`: the principals that write the copies; nothing is denied to them."""

    writes: bool = False
    read_only: bool = False
    own: frozenset[str] = frozenset()


class Settings(Fields):
    """One link's settings: immutable, picklable, free of I/O once loaded; printing it shows no secret.

    `client_properties` maps "<cluster>.<kind>" to librdkafka properties; client files have been read by then,
    so that a task on another machine needs none. `start_offsets` is "earliest", "latest", milliseconds since
    the epoch, or a list that common/config/start_offsets.py understands.
    """

    def to_dict(self) -> dict[str, Any]:
        """Plain values (str, int, float, None, list, dict), secrets included: for tasks on executors, not for
        people."""
        return self.model_dump()

    def redacted(self) -> dict[str, Any]:
        """As `to_dict`, with every secret hidden: for logs."""
        shown = self.to_dict()
        shown["client_properties"] = {
            client: client_properties.redacted(config) for client, config in self.client_properties.items()
        }
        shown["spark_conf"] = {
            key: HIDDEN if names_secret(key) or names_secret(value) else value
            for key, value in self.spark_conf.items()
        }
        shown["state_path"] = state_path.redacted(self.state_path)
        shown["otlp_headers"] = self.otlp_headers and HIDDEN
        shown["otlp_endpoint"] = self.otlp_endpoint and LOGIN.sub(f"//{HIDDEN}@", self.otlp_endpoint)
        return shown

    def __repr_args__(self) -> Any:
        return self.redacted().items()

    @property
    def staging_topic(self) -> str:
        return self.staging_topic_name or f"{self.application_name}.staging"

    @property
    def positions_topic(self) -> str:
        return self.positions_topic_name or f"{self.application_name}.positions"

    @property
    def control_topic(self) -> str:
        return self.control_topic_name or f"{self.application_name}.control"

    @property
    def mappings_topic(self) -> str:
        return self.mappings_topic_name or f"{self.application_name}.offset-mappings"

    @property
    def dead_letters_topic(self) -> str:
        return self.dead_letters_topic_name or f"{self.application_name}.dead-letters"

    @property
    def group_offsets_topic(self) -> str:
        return self.group_offsets_topic_name or f"{self.application_name}.group-offsets"

    @property
    def schemas_topic(self) -> str:
        return self.schemas_topic_name or f"{self.application_name}.schemas"

    @property
    def heartbeats_topic(self) -> str:
        """Of the source."""
        return self.heartbeats_topic_name or f"{self.application_name}.heartbeats"

    @property
    def metrics_topic(self) -> str:
        return self.metrics_topic_name or f"{self.application_name}.metrics"

    @property
    def exporters(self) -> list[str]:
        """Where metrics go: of telemetry.EXPORTERS."""
        return [name for name in self.metrics_exporters.split(",") if name != telemetry.NONE]

    @property
    def otel_variables(self) -> dict[str, str | None]:
        """What OpenTelemetry's own exporters read, wherever it was given."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.otlp_protocol,
            "OTEL_EXPORTER_OTLP_HEADERS": self.otlp_headers,
            "OTEL_SERVICE_NAME": self.otel_service_name,
            "OTEL_RESOURCE_ATTRIBUTES": self.otel_resource_attributes,
            "OTEL_TRACES_SAMPLER": self.traces_sampler,
            "OTEL_TRACES_SAMPLER_ARG": self.traces_sampler_arg,
        }

    @property
    def deduplicator_group(self) -> str:
        return f"{self.application_name}.deduplicator"

    @property
    def own_topic_kinds(self) -> dict[str, str]:
        """The link's own topics, and what each is called in LINK_TOPIC_CONFIG. That of metrics is where it is
        asked for: there may be another of its name."""
        return {
            **({self.metrics_topic: "metrics"} if "kafka" in self.exporters else {}),
            self.staging_topic: "staging",
            self.positions_topic: "positions",
            self.control_topic: "control",
            self.mappings_topic: "offset-mappings",
            self.group_offsets_topic: "group-offsets",
            self.schemas_topic: "schemas",
            self.dead_letters_topic: "dead-letters",
        }

    @property
    def own_topics(self) -> frozenset[str]:
        return frozenset(self.own_topic_kinds)

    @property
    def named_topics(self) -> list[str]:
        """The source topics that are selected by their names, whether they are there or not."""
        return sorted(name for name in topic_names.compiled(self.source_topic)[0] if self.selects(name))

    def selects(self, topic: str) -> bool:
        """Whether the link copies this source topic: never an internal one or one of its own, even when
        named."""
        if topic_names.is_internal(topic) or topic in self.own_topics:
            return False
        if self.heartbeats_interval_s and topic == self.heartbeats_topic:
            return True
        excluded = topic_names.matches(self.source_topic_exclude, topic)
        return not excluded and topic_names.matches(self.source_topic, topic)

    def without_heartbeats(self) -> Self:
        """The same, for what wants the source to stand still."""
        left_out = ",".join(filter(None, [self.source_topic_exclude, self.heartbeats_topic]))
        return self.model_copy(update={"heartbeats_interval_s": 0.0, "source_topic_exclude": left_out})

    def selects_group(self, group: str) -> bool:
        """Whether the offsets of this source group are translated."""
        excluded = topic_names.matches(self.consumer_groups_exclude, group)
        return not excluded and topic_names.matches(self.consumer_groups, group)

    def by_destination(self, topics: Iterable[str], source_name: str) -> dict[str, set[str]]:
        """Destination -> those of the source topics that are copied and named so; one whose name can't be
        written to is left out."""
        found: dict[str, set[str]] = {}
        for topic in filter(self.selects, topics):
            with contextlib.suppress(SettingsError):
                found.setdefault(self.destination_topic(topic, source_name), set()).add(topic)
        return found

    def destination_topic(self, topic: str, source_name: str) -> str:
        """The destination's name for a source topic. Raises SettingsError for a name that can't be written
        to."""
        variable, rule = PREFIX + "DESTINATION_TOPIC_MAP", self.destination_topic_map
        name = topic_names.topic_map(rule).get(topic)
        try:
            if name is None:
                variable, rule = PREFIX + "DESTINATION_TOPIC_REWRITE", self.destination_topic_rewrite
                name = topic_names.rewritten(rule, topic=topic, source=source_name)
            if name is None:
                variable, rule = PREFIX + "DESTINATION_TOPIC", self.destination_topic_template
                name = topic_names.expand_template(rule, topic=topic, source=source_name)
        except ValueError as error:
            raise SettingsError(
                f"{variable}: {rule!r} for topic {topic!r} of {source_name!r}: {error}"
            ) from None
        if topic_names.is_internal(name) or name in self.own_topics:
            raise SettingsError(
                f"{variable}: {rule!r} makes {name!r} of topic {topic!r}, which is not for copies"
            )
        return name

    def acl_policy(self) -> Policy:
        """How access rules are copied."""
        own = {name.strip() for name in self.acl_exempt.split(";") if name.strip()}
        user = self.client_config("destination", "producer").get("sasl.username")
        if not own and user:
            own = {f"User:{user}"}
        return Policy(self.acl_sync == "all", self.acl_read_only, frozenset(own))

    def client_config(self, cluster: Cluster, kind: Kind) -> dict[str, str | int]:
        """The user's librdkafka properties for one kind of client, with bootstrap.servers; a new dict at each
        call.

        Aliases are spelled one way (linger.ms, compression.type, acks...); what Verbatim owns is not in it.
        """
        servers = self.source_bootstrap_servers if cluster == "source" else self.destination_bootstrap_servers
        # A consumer of single partitions joins no group, but its client looks for the group's coordinator,
        # for which it needs the right.
        group = {"group.id": f"{self.application_name}.reader"} if kind == "consumer" else {}
        return {
            "bootstrap.servers": servers,
            **group,
            **self.client_properties.get(f"{cluster}.{kind}", {}),
        }
