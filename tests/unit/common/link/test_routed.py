"""What goes on with one copy of a topic is refused where its records are routed to several, by name."""

from __future__ import annotations

import json

import pytest

from common.errors import LinkRefused
from common.link.control_state import Control
from common.link.routed import refuse_routes
from tests.support.control_json import encode


def state() -> Control:
    found = Control()
    flows = [{"topics": ["events"], "stages": [{"route": {"topic": "{link}.{topic}"}}]}]
    none = {"flows": [], "keys": {}, "version": 1}
    for number, said in enumerate(({"flows": flows, "keys": {}}, none), 1):
        found.apply(found.position, encode("pipeline", n=number, definition=json.dumps(said), sha256=""))
    for name in ("events", "orders"):
        said = {"topic": name, "topic_id": name, "partitions": 1, "config": {}}
        found.apply(found.position, encode("topic", **said))
    return found


def test_a_topic_that_any_version_routes_is_named_with_where_it_goes() -> None:
    """Also one that no version routes any more: what was routed lies there."""
    words = "topic events: version 1 of the pipeline routes its records to link.events; so"
    with pytest.raises(LinkRefused, match=words):
        refuse_routes(state(), "link", "so")
    with pytest.raises(LinkRefused, match="topic events"):
        refuse_routes(state(), "link", "so", ["events", "orders"])


def test_other_topics_are_not_concerned() -> None:
    refuse_routes(state(), "link", "so", ["orders"])
    refuse_routes(Control(), "link", "so")
