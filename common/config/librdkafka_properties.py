"""The properties of the client library that is installed, as its own documentation lists them. Data; a test
compares it with the library."""

from __future__ import annotations

from typing import NamedTuple

_LIBRDKAFKA: dict[tuple[str, str], str] = {
    ("*", "str"): """
        client.id metadata.broker.list bootstrap.servers topic.blacklist broker.version.fallback
        ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.key.location ssl.key.password ssl.key.pem
        ssl.certificate.location ssl.certificate.pem ssl.ca.location https.ca.location https.ca.pem
        ssl.ca.pem ssl.ca.certificate.stores ssl.crl.location ssl.keystore.location ssl.keystore.password
        ssl.providers ssl.engine.location ssl.engine.id sasl.mechanisms sasl.mechanism
        sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.kinit.cmd sasl.kerberos.keytab
        sasl.username sasl.password sasl.oauthbearer.config sasl.oauthbearer.client.id
        sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
        sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions
        sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.sub.claim.name
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.jwt.template.file
        plugin.library.paths client.rack
    """,
    ("*", "int"): """
        message.max.bytes=1000..1000000000 message.copy.max.bytes=0..1000000000
        receive.message.max.bytes=1000..2147483647 max.in.flight.requests.per.connection=1..1000000
        max.in.flight=1..1000000 metadata.recovery.rebootstrap.trigger.ms=0..2147483647
        topic.metadata.refresh.interval.ms=-1..3600000 metadata.max.age.ms=1..86400000
        topic.metadata.refresh.fast.interval.ms=1..60000 topic.metadata.refresh.fast.cnt=0..1000
        topic.metadata.propagation.max.ms=0..3600000 socket.timeout.ms=10..300000
        socket.blocking.max.ms=1..60000 socket.send.buffer.bytes=0..100000000
        socket.receive.buffer.bytes=0..100000000 socket.max.fails=0..1000000
        broker.address.ttl=0..86400000 socket.connection.setup.timeout.ms=1000..2147483647
        connections.max.idle.ms=0..2147483647 reconnect.backoff.jitter.ms=0..3600000
        reconnect.backoff.ms=0..3600000 reconnect.backoff.max.ms=0..3600000
        statistics.interval.ms=0..86400000 enabled_events=0..2147483647 log_level=0..7
        internal.termination.signal=0..128 api.version.request.timeout.ms=1..300000
        api.version.fallback.ms=0..604800000 sasl.kerberos.min.time.before.relogin=0..86400000
        sasl.oauthbearer.assertion.claim.exp.seconds=1..2147483647
        sasl.oauthbearer.assertion.claim.nbf.seconds=0..2147483647 retry.backoff.ms=1..300000
        retry.backoff.max.ms=1..300000
    """,
    ("*", "enum"): """
        metadata.recovery.strategy=none|rebootstrap broker.address.family=any|v4|v6
        security.protocol=plaintext|ssl|sasl_plaintext|sasl_ssl
        ssl.endpoint.identification.algorithm=none|https sasl.oauthbearer.method=default|oidc
        sasl.oauthbearer.grant.type=client_credentials|urn:ietf:params:oauth:grant-type:jwt-bearer
        sasl.oauthbearer.assertion.algorithm=RS256|ES256
        sasl.oauthbearer.metadata.authentication.type=none|azure_imds|aws_iam
        client.dns.lookup=use_all_dns_ips|resolve_canonical_bootstrap_servers_only
    """,
    ("*", "bool"): """
        topic.metadata.refresh.sparse socket.keepalive.enable socket.nagle.disable log.queue
        log.thread.name enable.random.seed log.connection.close api.version.request
        allow.auto.create.topics enable.ssl.certificate.verification enable.sasl.oauthbearer.unsecure.jwt
        sasl.oauthbearer.assertion.claim.jti.include enable.metrics.push
    """,
    ("*", "flags"): """
        debug=generic|broker|topic|metadata|feature|queue|msg|protocol|cgrp|security|fetch|interceptor|plugin|consumer|admin|\
eos|mock|assignor|conf|telemetry|all
    """,
    ("C", "str"): """
        group.id group.instance.id partition.assignment.strategy group.protocol.type
        group.remote.assignor share.acknowledgement.mode offset.store.path
    """,
    ("C", "int"): """
        session.timeout.ms=1..3600000 heartbeat.interval.ms=1..3600000
        coordinator.query.interval.ms=1..3600000 max.poll.interval.ms=1..86400000
        auto.commit.interval.ms=0..86400000 queued.min.messages=1..10000000
        queued.max.messages.kbytes=1..2097151 fetch.wait.max.ms=0..300000
        fetch.queue.backoff.ms=0..300000 fetch.message.max.bytes=1..1000000000
        max.partition.fetch.bytes=1..1000000000 fetch.max.bytes=0..2147483135
        fetch.min.bytes=0..2147483647 fetch.error.backoff.ms=0..300000 max.poll.records=1..2147483647
        offset.store.sync.interval.ms=-1..86400000 consume.callback.max.messages=0..1000000
    """,
    ("C", "enum"): """
        group.protocol=classic|consumer offset.store.method=none|file|broker
        isolation.level=read_uncommitted|read_committed
        auto.offset.reset=smallest|earliest|beginning|largest|latest|end|error
    """,
    ("C", "bool"): """
        enable.auto.commit enable.auto.offset.store enable.partition.eof check.crcs auto.commit.enable
    """,
    ("P", "str"): """
        transactional.id partitioner
    """,
    ("P", "int"): """
        transaction.timeout.ms=1000..2147483647 queue.buffering.max.messages=0..2147483647
        queue.buffering.max.kbytes=1..2147483647 message.send.max.retries=0..2147483647
        retries=0..2147483647 queue.buffering.backpressure.threshold=1..1000000
        batch.num.messages=1..1000000 batch.size=1..2147483647 sticky.partitioning.linger.ms=0..900000
        request.required.acks=-1..1000 acks=-1..1000 request.timeout.ms=1..900000
        message.timeout.ms=0..2147483647 delivery.timeout.ms=0..2147483647 compression.level=-1..12
    """,
    ("P", "bool"): """
        enable.idempotence enable.gapless.guarantee delivery.report.only.error produce.offset.report
    """,
    ("P", "float"): """
        queue.buffering.max.ms=0..900000 linger.ms=0..900000
    """,
    ("P", "enum"): """
        compression.codec=none|gzip|snappy|lz4|zstd compression.type=none|gzip|snappy|lz4|zstd
        queuing.strategy=fifo|lifo
    """,
}


class Property(NamedTuple):
    """One librdkafka property. `limits`: "low..high" of numbers, "a|b" of enumerations, else empty."""

    name: str
    scope: str
    type: str
    limits: str


def _known() -> dict[str, Property]:
    found = {}
    for (scope, kind), text in _LIBRDKAFKA.items():
        for entry in text.split():
            name, _, limits = entry.partition("=")
            found[name] = Property(name, scope, kind, limits)
    return found


KNOWN = _known()
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "auto.commit.enable": "enable.auto.commit",
}
"""Two spellings of one property: without one name for both, a spelling in the file could beat the other in a
variable."""
