"""Why a listener does not let a client in: what it speaks, set beside the client's properties. Asks, and
decides nothing but the words.

The client library tells of some of this, in words of its own; of plaintext to a TLS listener, and of a
missing SASL, only that it was disconnected.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from common.kafka.wire import oauth_tokens, protocol
from common.kafka.wire.connection import Access, Connection, access
from common.kafka.wire.protocol import Address
from common.ports import Deadline

ANSWER_S = 2.5
"""For each connection, and for each answer."""


class Reason(NamedTuple):
    """`setting` is the end of a variable's name, `words` say what happened and what to do; `passing`: it may
    be over by itself."""

    setting: str
    words: str
    passing: bool


class _Spoken(NamedTuple):
    """`tls`: whether the listener speaks it; None where it answers neither way. `mechanisms` of SASL; None
    where they were not told."""

    tls: bool | None
    mechanisms: list[str] | None = None


def why(config: Mapping[str, Any], address: Address, heard: Mapping[int, str]) -> Reason | None:
    """Why a client with these properties is not let in there; None where nothing stands against it. Takes up
    to four times ANSWER_S.

    `heard`: what the client library said last, by the code of the error.
    """
    at = shown(address)
    if (lost := unreachable(address)) is not None:
        return Reason("BOOTSTRAP_SERVERS", f"{at}: {lost}", True)
    wanted = str(config.get("security.protocol", "plaintext")).lower()
    tls, sasl = wanted.endswith("ssl"), wanted.startswith("sasl_")
    spoken = _speaks(config, address, tls)
    if spoken.tls is None:
        words = f"{at} accepts connections and answers none of Kafka's questions: is it a broker, and in good health?"
        return Reason("BOOTSTRAP_SERVERS", words, True)
    if spoken.tls != tls:
        what = "does not speak TLS" if tls else "speaks TLS"
        words = f"{at} {what}, and security.protocol is {wanted}: set {_protocol(not tls, sasl)}, or give the port of another listener"
        return Reason("PROPERTIES_SECURITY_PROTOCOL", words, False)
    # With TLS 1.3 a broker refuses a client's certificate when the handshake is over for the client: its
    # alert comes as a failed receive.
    alert = next((words for words in heard.values() if "tls alert" in words), None)
    if (words_heard := heard.get(KafkaError._SSL, alert)) is not None:
        return _handshake(config, address, words_heard)
    words_heard = heard.get(KafkaError._AUTHENTICATION)
    if words_heard is not None and "acquire" in words_heard:
        # Who gives tokens may be away for a while.
        place = "PROVIDER" if oauth_tokens.PROVIDER in config else "TOKEN_ENDPOINT_URL"
        return Reason(f"PROPERTIES_SASL_OAUTHBEARER_{place}", f"{at}: {words_heard}", True)
    if (refused := _sasl(config, at, wanted, spoken.mechanisms)) is not None:
        return refused
    if words_heard is not None and str(config.get("sasl.mechanism", "")).upper() == "OAUTHBEARER":
        return Reason("PROPERTIES_SASL_MECHANISM", f"{at} does not take the token: {words_heard}", False)
    if words_heard is not None:
        words = f"{at} refuses the credentials of user {config.get('sasl.username', '')}: {words_heard}; mend sasl.username or sasl.password"
        return Reason("PROPERTIES_SASL_PASSWORD", words, False)
    others = [words for code, words in heard.items() if code != KafkaError._ALL_BROKERS_DOWN]
    return Reason("BOOTSTRAP_SERVERS", f"{at}: {others[-1]}", True) if others else None


def shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def unreachable(address: Address) -> str | None:
    """Why no connection can be made to an address; None where one can."""
    host, port = address
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name {host} can't be resolved ({error.strerror}): check its spelling, and the DNS of this machine"
    try:
        socket.create_connection(address, timeout=ANSWER_S).close()
    except TimeoutError:
        return f"no connection within {ANSWER_S:g} s: check the address, and what lies between (routes, firewalls)"
    except ConnectionRefusedError:
        return "connection refused: does the broker run, and is that its port?"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return None


def _protocol(tls: bool, sasl: bool) -> str:
    return ("sasl_" if sasl else "") + ("ssl" if tls else ("plaintext"))


def _speaks(config: Mapping[str, Any], address: Address, tls: bool) -> _Spoken:
    """What the listener answers: asked as the properties say, then the other way."""
    plain = replace(
        access({**config, "security.protocol": "plaintext"}), mechanism=None, user="", password=""
    )
    for with_tls in (tls, not tls):
        try:
            _, mechanisms = _asked(replace(plain, tls=_trusting() if with_tls else None), address)
        except KafkaException as error:
            if with_tls and "ALERT" in str(error):
                # It speaks TLS: it wants another certificate of the client's, or version.
                return _Spoken(True)
            continue
        return _Spoken(with_tls, mechanisms)
    return _Spoken(None)


def _asked(to: Access, address: Address) -> tuple[int, list[str]]:
    """Which mechanisms of SASL a listener knows: a question that each answers before it knows who asks, also
    one without SASL."""
    deadline = Deadline(ANSWER_S)
    with closing(Connection(to, address)) as connection:
        return protocol.mechanisms(connection.ask(protocol.SASL_HANDSHAKE, [protocol.text("?")], deadline))


def _trusting() -> ssl.SSLContext:
    """Nothing is sent that wants protection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _handshake(config: Mapping[str, Any], address: Address, heard: str) -> Reason:
    at = shown(address)
    if "certificate verify failed" not in heard:
        words = f"{at} breaks off the TLS handshake: {heard}; it may want a certificate of the client's (ssl.certificate.location, ssl.key.location)"
        return Reason("PROPERTIES_SSL_CERTIFICATE_LOCATION", words, False)
    why_not = _not_trusted(config, address)
    if "mismatch" in why_not.lower():
        words = f"{at} has a certificate that is not for that name ({why_not}): reach it by a name that is in there"
        return Reason("BOOTSTRAP_SERVERS", words, False)
    words = f"{at} has a certificate that is not trusted ({why_not}): set ssl.ca.location to the PEM of the authority that issued it"
    return Reason("PROPERTIES_SSL_CA_LOCATION", words, False)


def _not_trusted(config: Mapping[str, Any], address: Address) -> str:
    """In OpenSSL's words, which the client library keeps to itself."""
    try:
        _asked(replace(access(config), mechanism=None, user="", password=""), address)
    except KafkaException as error:
        found = re.search(r"certificate verify failed: (.*?)(?: \(_ssl|$)", error.args[0].str())
        return found[1] if found else "certificate verify failed"
    return "certificate verify failed"


def _sasl(config: Mapping[str, Any], at: str, wanted: str, offered: list[str] | None) -> Reason | None:
    tls, sasl = wanted.endswith("ssl"), wanted.startswith("sasl_")
    if offered is None or not (sasl or offered):
        return None
    if not sasl:
        words = f"{at} lets nobody in without SASL ({', '.join(offered)}), and security.protocol is {wanted}: set {_protocol(tls, True)}, with sasl.mechanism and credentials"
        return Reason("PROPERTIES_SECURITY_PROTOCOL", words, False)
    if not offered:
        words = f"{at} knows no SASL, and security.protocol is {wanted}: set {_protocol(tls, False)}, or give the port of another listener"
        return Reason("PROPERTIES_SECURITY_PROTOCOL", words, False)
    mechanism = str(config.get("sasl.mechanism", "GSSAPI"))
    if mechanism.upper() not in offered:
        words = f"{at} does not know sasl.mechanism={mechanism}, but {', '.join(offered)}"
        return Reason("PROPERTIES_SASL_MECHANISM", words, False)
    return None
