"""The link's own topics: made by Verbatim or by hand beforehand, with names and configurations of the
operator's choice."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from common.errors import ControlError, LinkRefused
from tests.conftest import Kafka, Names
from tests.integration.test_destinations import config
from tests.integration.test_offsets import commit, once
from tests.integration.test_topics_change import add_partitions
from tests.support.brokers import Record, create_topic, end_offsets, produce, read_all, topics
from tests.support.control_json import encode
from tests.support.harness import Link, assert_copied, eventually
from verbatim.main import cli

WANTED = re.compile(r"topic (\S+) is missing on the target, .* make it with (\d+) partitions and (\S.*)$")


def of_link(bootstrap: str, names: Names) -> set[str]:
    """The topics of this test."""
    return {name for name in topics(bootstrap) if names.link in name}


@pytest.mark.whole
def test_nothing_is_made_where_topics_are_made_by_hand_and_each_that_is_missing_is_named(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: with CREATE_TOPICS=false a missing topic of the link is refused in one line that says what to
    make, a missing destination, or one with too few partitions, is refused by name while the others are
    copied; nothing is made; made as was said, all is copied."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    there, missing, small = names.topic("there"), names.topic("missing"), names.topic("small")
    for topic, partitions in ((there, 1), (missing, 2), (small, 2)):
        create_topic(at, topic, partitions)
        produce(at, topic, [Record(b"one")])
    link = Link(at, to, names.link, rf"{names.link}\.t\..*", CREATE_TOPICS="false")
    made = set()
    for _ in range(4):
        before = of_link(to, names)
        with pytest.raises(LinkRefused) as refused:
            link.replicate()
        assert of_link(to, names) == before
        told = WANTED.search(str(refused.value))
        assert told is not None
        wanted = dict(pair.split("=") for pair in told[3].split(", "))
        create_topic(to, told[1], int(told[2]), wanted)
        made.add(told[1])
    s = link.settings
    assert made == s.own_topics - {s.group_offsets_topic, s.schemas_topic, s.dead_letters_topic}
    create_topic(to, there)
    create_topic(to, small)
    before = of_link(to, names)
    assert link.replicate() == 0
    capsys.readouterr()
    assert link.deduplicate() == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert [line.split(" halted: ")[0] for line in lines] == [
        f"error: {t}-{p}" for t in (missing, small) for p in (0, 1)
    ]
    assert all("CREATE_TOPICS is false" in line for line in lines)
    assert of_link(to, names) == before
    assert_copied(link, there)
    create_topic(to, missing, 2)
    add_partitions(to, small, 2)
    assert link.copy() == (0, 0)
    for topic in (there, missing, small):
        assert_copied(link, topic)


def test_the_links_topics_have_the_names_and_the_configuration_that_were_asked_for(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: each topic of a link can be named, and what is asked for is added to its configuration;
    copying, verifying and consumer groups work with them, and no topic of another name is made."""
    at, to, link_name = source.bootstrap_servers, target.bootstrap_servers, names.link
    topic = names.topic()
    create_topic(at, topic)
    produce(at, topic, [Record(b"one"), Record(b"two")])
    own = {
        "STAGING_TOPIC": f"ops.{link_name}.a",
        "CONTROL_TOPIC": f"ops.{link_name}.b",
        "POSITIONS_TOPIC": f"ops.{link_name}.c",
        "OFFSET_MAPPINGS_TOPIC": f"ops.{link_name}.d",
        "GROUP_OFFSETS_TOPIC": f"ops.{link_name}.e",
    }
    asked = "segment.ms=7777777,staging:segment.bytes=20971520,offset-mappings:retention.ms=1209600000"
    link = Link(at, to, link_name, topic, LINK_TOPIC_CONFIG=asked, **own)
    assert link.copy() == (0, 0)
    assert_copied(link, topic)
    from offsets.main import command

    for what, arguments in ((cli.commands["verify"], ()), (command, ("--once",))):
        result = CliRunner().invoke(what, list(arguments), env=link.variables)
        assert result.exit_code in (0, None), result.output
    assert {name for name in topics(to) if link_name in name} == {topic, *own.values()}
    for name in own.values():
        assert config(to, name)["segment.ms"] == "7777777"
    assert config(to, own["STAGING_TOPIC"])["segment.bytes"] == "20971520"
    assert config(to, own["OFFSET_MAPPINGS_TOPIC"])["retention.ms"] == "1209600000"
    # Named, they are known as the link's at the next start too.
    produce(at, topic, [Record(b"three")])
    assert link.copy() == (0, 0)
    assert end_offsets(at, topic) == {0: 3}
    assert_copied(link, topic)


@pytest.mark.whole
def test_two_links_share_a_control_topic_and_leave_each_other_alone(
    source: Kafka, target: Kafka, names: Names
) -> None:
    """Promise: links of one target may have one control topic: each leads, copies, and finds its origins and
    its destinations for itself, also when both copy the same topic, and when one starts again while the other
    runs."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, shared = names.topic(), f"{names.link}.shared"
    create_topic(at, topic, 2)
    produce(at, topic, [Record(b"%d" % i, partition=i % 2) for i in range(4)])
    first, second = (
        Link(
            at,
            to,
            f"{names.link}{which}",
            topic,
            CONTROL_TOPIC=shared,
            KAFKA_CLUSTERS_DESTINATION_TOPIC=which + ".{topic}",
            START_OFFSETS=start,
        )
        for which, start in (("a", "earliest"), ("b", "latest"))
    )
    assert first.copy() == (0, 0)
    with first.running():
        assert second.copy() == (0, 0)
        assert second.arrived(f"b.{topic}") == [0, 0]
        produce(at, topic, [Record(b"later", partition=p) for p in range(2)])
        assert second.copy() == (0, 0)
        eventually(lambda: first.arrived(f"a.{topic}") == [3, 3], "what came later")
        assert second.copy() == (0, 0)
    assert [[r.value for r in p] for p in read_all(to, f"b.{topic}")] == [[b"later"], [b"later"]]
    assert_copied(first, topic, f"a.{topic}")
    for link in (first, second):
        result = CliRunner().invoke(cli.commands["verify"], [], env=link.variables)
        assert result.exit_code in (0, None), result.output


def test_what_others_write_to_the_topics_of_a_link_ends_nothing(
    source: Kafka, target: Kafka, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise: a record that is not the link's is skipped with one line, by the applications, `offsets` and
    the operator's commands; one of the link's own that is damaged is named, and ends them."""
    at, to, topic, group = (
        source.bootstrap_servers,
        target.bootstrap_servers,
        names.topic(),
        f"{names.link}.g",
    )
    create_topic(at, topic)
    produce(at, topic, [Record(b"one"), Record(b"two")])
    link = Link(at, to, names.link, topic)
    assert link.copy() == (0, 0)
    commit(at, group, topic, 1)
    once(link, CONSUMER_GROUPS=group)
    s = link.settings
    strays = [
        Record(b"hello", b"world"),
        Record(None, b"[]"),
        Record(b"[1]"),
        Record(b'{"kind":"order"}', b"{}"),
    ]
    for internal in (s.control_topic, s.positions_topic, s.group_offsets_topic):
        produce(to, internal, [r for r in strays if r.key is not None or internal == s.control_topic])
    produce(to, s.control_topic, [Record(encode("of-a-newer-release", link=link.settings.application_name))])
    caplog.clear()
    produce(at, topic, [Record(b"three")])
    commit(at, group, topic, 2)
    assert link.copy() == (0, 0)
    told = [m for m in caplog.messages if m.startswith(f"{s.control_topic} offset ")]
    assert len(told) == 2 * 5 and len(set(told)) == 5, "a line each, in each application"
    assert all("skipped, since" in line for line in told)
    assert_copied(link, topic)
    (row,) = once(link, CONSUMER_GROUPS=group).rows
    assert (row.record.source_offset, row.record.outcome) == (2, "written")
    assert sum(m.startswith(f"{s.group_offsets_topic} offset ") for m in caplog.messages) == 3
    for command in (["verify"], ["status"]):
        assert CliRunner().invoke(cli, command, env=link.variables, standalone_mode=False).exception is None
    produce(to, s.control_topic, [Record(encode("origin", link=link.settings.application_name, topic=topic))])
    with pytest.raises(ControlError, match="control record at offset"):
        link.replicate()
