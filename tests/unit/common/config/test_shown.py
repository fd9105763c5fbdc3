"""What an instance shows of its settings: nothing that is a secret, or that could hold one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.client_properties import HIDDEN, KNOWN
from common.config.shown import shown
from tests.support.made_up_link import settings

SECRET = "s3cr3t-hunter2"  # noqa: S105 - nobody's
FREE = sorted(name for name, prop in KNOWN.items() if prop.type == "str")
HARMLESS = {
    "bootstrap.servers", "client.id", "client.rack", "sasl.mechanism", "sasl.mechanisms",
    "sasl.kerberos.service.name", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.keystore.location", "ssl.crl.location", "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list",
}  # fmt: skip
"""All of free text whose value may be seen."""


def of(**changed: object) -> dict[str, str]:
    return {line["name"]: line["value"] for line in shown(settings().model_copy(update=changed))}


@given(st.sampled_from(FREE), st.sampled_from(["source.consumer", "destination.producer"]))
def test_no_property_of_free_text_is_shown_but_those_that_are_known_to_be_harmless(
    name: str, client: str
) -> None:
    found = of(client_properties={client: {name: SECRET}})
    assert found[f"{client}: {name}"] == (SECRET if name in HARMLESS else HIDDEN)


def test_a_property_that_nobody_knows_is_not_shown() -> None:
    assert (
        of(client_properties={"source.admin": {"of.another": SECRET}})["source.admin: of.another"] == HIDDEN
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"spark_conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}},
        {"spark_conf": {"spark.driver.extraJavaOptions": f"-Dpassword={SECRET}"}},
        {"spark_conf": {"spark.proxy": f"http://user:{SECRET}@proxy:1"}},
        {"state_path": f"wasb://container:{SECRET}@account/state"},
    ],
)
def test_no_secret_is_shown_wherever_it_stands(changed: dict[str, object]) -> None:
    assert SECRET not in str(of(**changed))


def test_settings_are_shown_by_their_variables_with_units() -> None:
    found = of(client_properties={"source.consumer": {"fetch.wait.max.ms": 7}})
    assert found["APPLICATION_NAME"] == "east"
    assert found["KAFKA_CLUSTERS_SOURCE_TOPIC"] == ".*"
    assert found["TOPIC_REFRESH_INTERVAL"].endswith(" s")
    assert found["source.consumer: fetch.wait.max.ms"] == "7"
    assert found["INSTANCE_ID"] == "-"
