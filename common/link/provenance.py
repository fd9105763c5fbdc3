"""Provenance headers: each link that is asked to adds one that names the cluster a record came from, so that
none goes round. Pure.

Confluent's replicator has the same idea under the same name. A record that has passed several clusters has a
header for each, in their order. Which records are left out for it is decided in
replicator/lane/partition_copy.py; who asks for it is PROVENANCE_HEADERS.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.kafka.wire.records import Header

NAME = "verbatim.provenance"


def header(cluster: str) -> Header:
    """What a link whose source is `cluster` adds behind a record's own headers."""
    return NAME, cluster.encode()


def came_from(headers: Sequence[Header] | None, mark: Header) -> bool:
    """Whether a record with these headers has been in the cluster of `mark`, as `header` gives it."""
    return bool(headers) and mark in headers  # type: ignore[operator]
