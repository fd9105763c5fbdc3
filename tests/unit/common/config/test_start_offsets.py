"""START_OFFSETS: what each entry of a list means, which counts, and what is said of one that is
ill-formed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.start_offsets import MirrorMaker, StartOffsets, checked, parsed

NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True)
STARTS = st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(0, 10**15 - 1))


def test_one_value_is_for_all_topics() -> None:
    for text, meant in (("latest", "latest"), (" Earliest", "earliest"), ("17", 17)):
        assert checked(text) == meant
        assert parsed(text) == StartOffsets(meant)
    assert parsed(17).of("any") == 17


def test_a_time_with_a_comma_is_one_value() -> None:
    assert checked("1970-01-01T00:00:01,500") == 1500


def test_the_first_entry_that_matches_counts_and_the_one_alone_is_for_all_others() -> None:
    starts = parsed(
        r"orders=latest, latest-.*=5, v[0-9]{1,3}=1970-01-01T00:00:01Z ,earliest, .*-b=latest,latest-b=7"
    )
    assert [starts.of(t) for t in ("orders", "latest-a", "v12", "x-b", "latest-b", "other")] == [
        "latest",
        5,
        1000,
        "latest",
        5,
        "earliest",
    ]


def test_without_an_entry_alone_all_others_begin_at_their_beginning() -> None:
    assert parsed("orders=latest").of("other") == "earliest"


def test_a_partition_has_an_offset_of_its_own() -> None:
    starts = parsed("orders:3=42,orders=latest,1700000000000")
    assert starts.exact == {("orders", 3): 42}
    assert starts.of("orders") == "latest" and starts.of("other") == 1_700_000_000_000
    assert starts.named == {"orders"}


def test_mirror_maker_is_named_by_its_offsets_topic_and_where_several_use_it_by_alias_and_connector() -> None:
    whole = MirrorMaker("mm2-offsets.us.internal", "us", "us->eu.MirrorSourceConnector")
    for text, meant in (
        ("mirrormaker:mm2-offsets.us.internal", MirrorMaker("mm2-offsets.us.internal")),
        (" MirrorMaker:o:us", MirrorMaker("o", "us")),
        ("mirrormaker:mm2-offsets.us.internal:us:us->eu.MirrorSourceConnector", whole),
        ("mirrormaker:o::a:b", MirrorMaker("o", "", "a:b")),
    ):
        assert parsed(text) == StartOffsets(meant)
        assert checked(text) == text.strip(), "the setting stays a text"
    starts = parsed("a:1=7,a=mirrormaker:o,.*=mirrormaker:o:us:x->y.z,b=latest,17")
    assert starts.of("a") == MirrorMaker("o") and starts.of("b") == MirrorMaker("o", "us", "x->y.z")
    assert starts.exact == {("a", 1): 7}


def test_what_mirror_maker_has_not_copied_begins_by_the_next_entry() -> None:
    starts = parsed("a=mirrormaker:o,[ab]=mirrormaker:p,b=latest,17")
    assert [starts.without_mirror_maker(topic) for topic in "abc"] == [17, "latest", 17]
    assert parsed("b=latest,mirrormaker:o").without_mirror_maker("a") == "earliest"


@pytest.mark.parametrize("text", ["mirrormaker", "mirrormaker:", "mirrormaker:a b", "a=mirrormaker"])
def test_mirror_maker_without_its_topic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mirrormaker:OFFSETS_TOPIC|legal name"):
        checked(text)


@given(
    st.dictionaries(NAMES, STARTS),
    STARTS,
    st.dictionaries(st.tuples(NAMES, st.integers(0, 99)), st.integers(0, 10**18 - 1)),
)
def test_what_is_written_is_what_is_meant(
    some: dict[str, str | int], otherwise: str | int, exact: dict[tuple[str, int], int]
) -> None:
    entries = [f"{topic}={start}" for topic, start in some.items()]
    entries += [f"{topic}:{p}={offset}" for (topic, p), offset in exact.items()]
    found = parsed(",".join([*entries, str(otherwise)]))
    assert found == StartOffsets(otherwise, tuple(some.items()), exact)
    assert all(found.of(topic) == start for topic, start in some.items())


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("orders=tomorrow", "orders=tomorrow"),
        ("earliest,orders=", "orders="),
        ("=latest", "=latest"),
        ("earliest,latest", "latest"),
        ("a=latest,a=earliest", "a=earliest"),
        ("orders:0=latest", "orders:0=latest"),
        ("orders:0=-1", "orders:0=-1"),
        ("orders:0=1,orders:0=2", "orders:0=2"),
        ("orders.*:0=1", "orders.*:0=1"),
        ("broken(=latest", "broken(=latest"),
        ("earliest,soon", "soon"),
    ],
)
def test_an_ill_formed_entry_is_named(text: str, entry: str) -> None:
    with pytest.raises(ValueError, match="entry") as caught:
        checked(text)
    assert repr(entry) in str(caught.value)
