"""What may be added to the configuration of a link's own topics, and what is refused."""

from __future__ import annotations

import pytest

from common.config.own_topic_config import KINDS, configured


def test_a_setting_goes_to_all_topics_or_to_the_one_that_it_names() -> None:
    found = configured("min.insync.replicas=2, staging:segment.bytes=5 ,offset-mappings:retention.ms=3600000")
    assert found.keys() == set(KINDS)
    assert found["control"] == {"min.insync.replicas": "2"}
    assert found["staging"] == {"min.insync.replicas": "2", "segment.bytes": "5"}
    assert found["offset-mappings"] == {"min.insync.replicas": "2", "retention.ms": "3600000"}
    assert configured("a=1,control:a=2")["control"] == {"a": "2"}
    assert configured("metrics:retention.ms=3600000")["metrics"] == {"retention.ms": "3600000"}
    assert configured("") == {kind: {} for kind in KINDS}


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "=1",
        "staging:=1",
        "other:a=1",
        "retention.ms=5",
        "staging:retention.bytes=5",
        "positions:cleanup.policy=delete",
        "message.timestamp.type=LogAppendTime",
        "offset-mappings:retention.ms=3599999",
        "offset-mappings:retention.ms=x",
        "metrics:retention.ms=3599999",
        "staging:max.message.bytes=1000",
    ],
)
def test_what_a_link_can_not_work_with_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.split("=")[0] or "key=value"):
        configured(text)
