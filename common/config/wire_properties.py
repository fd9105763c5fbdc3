"""What becomes of each property of the client library where records go by connections of Verbatim's own
(common/kafka/wire/connection.py). Pure.

Each is heeded there, or refused by name, since nothing else than the library could follow it; or it speaks of
something that these connections don't have, such as a queue of messages; or it has no effect on them, and
whoever sets it is told. A test lists them all, and compares the four with the list of the installed library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PEM = (
    "convert it (openssl pkcs12 -in FILE -nodes -out client.pem) and name client.pem as ssl.certificate.location and "
    "ssl.key.location"
)
_GRANT = "use sasl.oauthbearer.client.secret, or a function of your own as sasl.oauthbearer.provider"
REFUSED = {
    "ssl.keystore.location": _PEM,
    "ssl.keystore.password": _PEM,
    "ssl.ca.certificate.stores": "they are Windows'; use ssl.ca.location",
    "ssl.sigalgs.list": "leave it out; ssl.cipher.suites and ssl.curves.list are followed",
    "ssl.providers": "use PEM files: ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "use PEM files: ssl.certificate.location and ssl.key.location",
    "ssl.engine.id": "use PEM files: ssl.certificate.location and ssl.key.location",
    "plugin.library.paths": "leave it out; tokens come from a function as sasl.oauthbearer.provider",
} | {
    f"sasl.oauthbearer.assertion.{what}": _GRANT
    for what in (
        "algorithm",
        "private.key.file",
        "private.key.passphrase",
        "private.key.pem",
        "file",
        "claim.aud",
        "claim.iss",
        "claim.sub",
        "claim.exp.seconds",
        "claim.nbf.seconds",
        "claim.jti.include",
        "jwt.template.file",
    )
}
"""What nothing but the client library can follow, and what to use instead."""
PASSWORD_MECHANISMS = {"PLAIN": None, "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""SASL mechanisms by which a password is proved -> the hash that they do it with."""
_MECHANISMS = frozenset({*PASSWORD_MECHANISMS, "OAUTHBEARER"})
_NO_EFFECT = """
    client.rack message.max.bytes receive.message.max.bytes metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy topic.metadata.refresh.interval.ms metadata.max.age.ms
    socket.timeout.ms socket.send.buffer.bytes socket.receive.buffer.bytes socket.max.fails
    socket.keepalive.enable socket.nagle.disable broker.address.ttl
    socket.connection.setup.timeout.ms connections.max.idle.ms reconnect.backoff.jitter.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    client.dns.lookup max.in.flight.requests.per.connection fetch.error.backoff.ms
    transaction.timeout.ms retries batch.num.messages batch.size request.timeout.ms linger.ms
"""
NO_EFFECT = frozenset(_NO_EFFECT.split())


def refused(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first property of a client's that can't be followed, as NAME or NAME=VALUE, and what to use
    instead; None where there is none."""
    mechanism = sasl_mechanism(config)
    if mechanism is not None and mechanism not in _MECHANISMS:
        return f"sasl.mechanism={mechanism}", f"set one of {', '.join(sorted(_MECHANISMS))}"
    for name, followed in (("grant.type", "client_credentials"), ("metadata.authentication.type", "none")):
        name = f"sasl.oauthbearer.{name}"
        if config.get(name, followed) != followed:
            return f"{name}={config[name]}", _GRANT
    return next(((name, REFUSED[name]) for name in config if name in REFUSED), None)


def sasl_mechanism(config: Mapping[str, Any]) -> str | None:
    """SASL's, where a client is to use that."""
    if not str(config.get("security.protocol", "plaintext")).lower().startswith("sasl_"):
        return None
    return str(config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))).upper()


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """The properties of a client's that have no effect on records which go as whole batches."""
    found = [name for name in config if name in NO_EFFECT]
    if "compression.level" in config and config.get("compression.type", "lz4") in ("lz4", "snappy", "none"):
        found.append("compression.level")
    return found
