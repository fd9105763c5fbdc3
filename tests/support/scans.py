"""What `verbatim scan --output json` writes, as far as `verbatim init` reads it."""

from __future__ import annotations

from typing import Any

PROPERTIES = {
    "sasl.mechanism": "PLAIN",
    "sasl.password": None,
    "sasl.username": "u",
    "security.protocol": "SASL_SSL",
}
SCAN: dict[str, Any] = {
    "form": 1,
    "cluster": "c1",
    "asked": {"bootstrap_servers": "a:1", "topic": ".*", "topic_exclude": "", "properties": PROPERTIES},
    "topics": [
        {
            "topic": "orders",
            "partitions": 600,
            "replication_factor": 3,
            "bytes": 1 << 40,
            "bytes_per_second": 1e9,
            "batch_bytes": 1000.0,
            "config": {},
            "lacking": [],
        }
    ],
    "groups": [{"group": "billing", "type": "classic"}],
    "unread": [],
    "moving": {"line_mbit": None},
}
