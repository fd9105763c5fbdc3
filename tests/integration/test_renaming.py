"""Names of destinations: by map, expression and template; what one name for two topics comes to; a name that
is changed."""

from __future__ import annotations

import pytest

from tests.conftest import Kafka, Names
from tests.support.brokers import Record, create_topic, produce, read_all, topics
from tests.support.harness import Link, assert_copied, contents

TARGET = "KAFKA_CLUSTERS_DESTINATION_"


def records(begin: int, end: int) -> list[Record]:
    return [Record(b"%d" % i, b"k%d" % i) for i in range(begin, end)]


def test_topics_go_where_map_expression_and_template_say_and_two_into_one_is_refused_by_name(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: the map wins over the expressions, these over the template; a topic whose name would be that
    of another's copy is refused by name, exit 3, and the others are copied."""
    at, to, link_name = source.bootstrap_servers, target.bootstrap_servers, names.link
    mapped, rewritten, left, clashing = (
        names.topic(w) for w in ("mapped", "re.written", "left", "un.written")
    )
    for topic in (mapped, rewritten, left, clashing):
        create_topic(at, topic)
        produce(at, topic, records(0, 5))
    link = Link(
        at,
        to,
        link_name,
        rf"{link_name}\.t\..*",
        **{
            TARGET + "TOPIC_MAP": f"{mapped}={link_name}.shop",
            TARGET + "TOPIC_REWRITE": r"(.*)\.t\.(re|un)\.(\w+)=\1.\3",
            TARGET + "TOPIC": "copy.{topic}",
        },
    )
    assert link.replicate() == 0
    capsys.readouterr()
    assert link.deduplicate() == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].startswith(
        f"error: {clashing}-0 halted: destination topic {link_name}.written"
    )
    assert rewritten in lines[0] and "SEVERAL_SOURCES is fail" in lines[0]
    assert_copied(link, mapped, f"{link_name}.shop")
    assert_copied(link, rewritten, f"{link_name}.written")
    assert_copied(link, left, f"copy.{left}")
    own = {link.settings.staging_topic, link.settings.control_topic}
    made = {name for name in topics(to) if link_name in name} - {
        name
        for name in topics(to)
        if name.startswith(f"{link_name}.") and name in own | link.settings.own_topics
    }
    assert made == {f"{link_name}.shop", f"{link_name}.written", f"copy.{left}"}


def test_a_changed_name_counts_from_the_next_start_and_nothing_is_copied_twice(
    source: Kafka, target: Kafka, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise: after the name of a destination was changed, what was copied stays where it is, what comes
    then goes to the new one, once, and the mappings say which is where; the old copy is not given to another
    topic."""
    at, to = source.bootstrap_servers, target.bootstrap_servers
    topic, other = names.topic("one"), names.topic("other")
    first, second = f"{names.link}.first", f"{names.link}.second"
    create_topic(at, topic)
    produce(at, topic, records(0, 5))
    link = Link(at, to, names.link, topic, **{TARGET + "TOPIC": first})
    assert link.copy() == (0, 0)
    renamed = Link(
        at,
        to,
        names.link,
        rf"{names.link}\.t\..*",
        **{TARGET + "TOPIC_MAP": f"{topic}={second},{other}={first}"},
    )
    produce(at, topic, records(5, 9))
    create_topic(at, other)
    produce(at, other, records(0, 3))
    assert renamed.replicate() == 0
    capsys.readouterr()
    assert renamed.deduplicate() == 3
    assert (
        f"{other}-0 halted: destination topic {first}: topic {topic} is copied there already"
        in capsys.readouterr().err
    )
    there = [contents(r) for r in read_all(at, topic)[0]]
    assert [contents(r) for r in read_all(to, first)[0]] == there[:5]
    assert [contents(r) for r in read_all(to, second)[0]] == there[5:]
    told = [(m.destination_topic, m.start, m.next) for m in renamed.mappings(topic)[0] if m.records]
    assert told[0] == (first, 0, 5) and told[-1][0] == second
    assert [m[1] for m in told[1:]] == [m[2] for m in told[:-1]]
