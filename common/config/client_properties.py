"""librdkafka client properties as users give them: files, variables, Java spellings. Pure; makes no client.

The names, scopes and ranges below are what the bundled librdkafka prints of itself
(`rd_kafka_conf_properties_show`); a test compares them with the installed library. Making a client to find
out would cost threads, could fail for reasons that are no setting's fault (a mounted file missing on this
machine), and would not tell which variable was wrong.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from common.config import wire_properties
from common.config.librdkafka_properties import ALIASES as ALIASES
from common.config.librdkafka_properties import KNOWN as KNOWN
from common.config.librdkafka_properties import Property
from common.errors import SettingsError

COMPRESSION = "lz4"
"""Of what is produced, where nothing else is set."""
HIDDEN = "[hidden]"
"""In the place of a secret."""
LOGIN = re.compile(r"//([^/@\s]*)@")
"""What stands before the host of a URL."""
Kind = Literal["consumer", "producer", "admin"]
Value = str | int

# By scope (C: consumers, P: producers, *: both and admin clients) and type.
_ITSELF = "Verbatim sets it itself"
_OWNED: dict[str, tuple[frozenset[str], str]] = {
    name: (frozenset(accepted.split()), why)
    for name, accepted, why in (
        ("enable.idempotence", "true", "it is always true, or records could be repeated or change places"),
        ("enable.gapless.guarantee", "true", "it is always true, or a failed record could leave a gap"),
        ("transactional.id", "", _ITSELF),
        ("isolation.level", "read_committed", "it is always read_committed"),
        (
            "auto.offset.reset",
            "error",
            "it is always error, or lost records would pass in silence; see START_OFFSETS",
        ),
        ("enable.auto.commit", "false", "it is always false: positions are committed with the records"),
        ("enable.auto.offset.store", "false", "it is always false: positions are committed with the records"),
        ("group.id", "", "groups are named after APPLICATION_NAME"),
        ("group.instance.id", "", "set INSTANCE_ID instead"),
        ("group.protocol", "classic", "leadership needs the classic protocol"),
        ("message.timeout.ms", "0", "it is always 0 (no limit): a record given up would leave a gap"),
        ("acks", "all -1", "it is always all, or a broker's failure could lose records"),
        ("max.in.flight.requests.per.connection", "1 2 3 4 5", "idempotence allows 1 to 5"),
        ("queuing.strategy", "fifo", "records keep their order"),
        ("delivery.report.only.error", "false", "delivery reports say where records lie"),
        ("enable.partition.eof", "", _ITSELF),
        ("allow.auto.create.topics", "false", "Verbatim creates topics itself, and none at the source"),
        ("topic.blacklist", "", "set KAFKA_CLUSTERS_SOURCE_TOPIC_EXCLUDE instead"),
    )
}
_TUNABLE = frozenset({"max.in.flight.requests.per.connection"})
"""Owned properties whose accepted values still make a difference, and so are passed on."""


def owned() -> frozenset[str]:
    """The properties that Verbatim sets itself and hands on to nobody."""
    return frozenset(_OWNED) - _TUNABLE


_STORES = ("ssl.truststore", "ssl.keystore")
_JAVA_STORE = frozenset(
    {f"ssl.truststore.{what}" for what in ("type", "location", "password", "certificates")}
    | {f"ssl.keystore.{what}" for what in ("type", "key", "certificate.chain")}
)
_JAVA_HINTS = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "buffer.memory": "queue.buffering.max.kbytes",
    "max.request.size": "message.max.bytes",
    "sasl.kerberos.ticket.renew.window.factor": "sasl.kerberos.min.time.before.relogin",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope.claim.name": "sasl.oauthbearer.scope",
}
_OWN = {"sasl.oauthbearer.provider": Property("sasl.oauthbearer.provider", "*", "str", "")}
"""Not the library's: a Python function that gives tokens (common/kafka/wire/oauth_tokens.py)."""
_SPELLED = {name.replace("_", "."): name for name in (*KNOWN, *_JAVA_STORE, *_JAVA_HINTS, "sasl.jaas.config")}
_SECRET = re.compile(r"password|passphrase|secret|jaas|\.pem$|keystore\.key|oauthbearer\.(config|extensions)")


class Given(NamedTuple):
    """A property as somebody gave it. `label` says where, beginning with a variable's name."""

    name: str
    value: str
    label: str


def is_secret(name: str) -> bool:
    """Whether the property's value must not be shown."""
    return _SECRET.search(name) is not None


def from_key(key: str) -> str:
    """The property that the last part of a variable's name means: `_` stands for `.` (also where librdkafka
    has `_`)."""
    name = key.lower().replace("_", ".")
    return _SPELLED.get(name, name)


def parse_properties(text: str, label: str) -> list[Given]:
    """A properties file of a client.

    Of a name given twice the last one counts. A line whose name is no property's is refused without showing
    it: it may be a line of a private key.
    """
    found: dict[str, Given] = {}
    for name, value, line in java_properties(text):
        if not re.fullmatch(r"[a-z][a-z0-9_.]{0,79}", name):
            raise SettingsError(f"{label}, line {line}: not a property (name=value)")
        found[name] = Given(name, value, f"{label}, line {line}")
    return list(found.values())


def java_properties(text: str) -> Iterator[tuple[str, str, int]]:
    """The entries of a Java properties file (java.util.Properties.load), each with the line where it begins:
    comments, `=`, `:` or blank, continued lines, escapes."""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        here = number
        while re.search(r"(?<!\\)(?:\\\\)*\\$", line):
            number, more = next(lines, (number, ""))
            line = line[:-1] + more.lstrip()
        key, value = re.fullmatch(r"((?:[^\\\s=:]|\\.)*)\s*[=:]?\s*(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
        yield _unescape(key), _unescape(value), here


def _unescape(text: str) -> str:
    controls = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else controls.get(code, code)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", replaced, text, flags=re.DOTALL)


def resolve(
    kind: Kind,
    layers: Sequence[tuple[bool, Iterable[Given]]],
    bootstrap: Given,
    direct: bool = False,
) -> tuple[dict[str, Value], list[str]]:
    """The properties of one kind of client, and warnings. A later layer wins; aliases count as one property.

    A layer is (for this kind only?, properties). Properties of the other kind are left out, but refused in a
    layer that is for this kind only. Owned properties are left out once they have been found harmless.
    `bootstrap` is what the cluster's own variable says; `direct` whether records go by connections of
    Verbatim's own instead of clients of this kind: these don't heed all that the library does. Raises
    SettingsError with the label of the property at fault.
    """
    merged: dict[str, tuple[Given, bool]] = {}
    for specific, layer in layers:
        own: dict[str, Given] = {}
        for given in without_jaas(layer):
            name = ALIASES.get(given.name, given.name)
            if name in own and own[name].value != given.value:
                raise SettingsError(f"{given.label}: {name} is given another value by {own[name].label}")
            own[name] = given
        merged |= {name: (given, specific) for name, given in own.items()}
    merged, warnings = _without_stores(merged)
    config: dict[str, Value] = {}
    for name, (given, specific) in merged.items():
        prop = KNOWN.get(name) or _OWN.get(name)
        if prop is None:
            raise SettingsError(f"{given.label}: {name} is not a property of librdkafka{_hint(name)}")
        value = _checked(prop, given)
        if name == "bootstrap.servers":
            if _hosts(given.value) != _hosts(bootstrap.value):
                raise SettingsError(f"{given.label}: bootstrap.servers is set by {bootstrap.label}")
            continue
        if name in _OWNED:
            accepted, why = _OWNED[name]
            if str(value) not in accepted:
                raise SettingsError(
                    f"{given.label}: {name} can't be set to {_shown(name, given.value)}: {why}"
                )
            if name not in _TUNABLE:
                continue
        if prop.scope in ("*", kind[0].upper()):
            config[name] = value
        elif specific:
            raise SettingsError(f"{given.label}: {name} is not a property of {kind} clients")
    if direct:
        warnings += [
            f"{merged[name][0].label}: {name} has no effect on records, which are {_DIRECT[kind]} by connections of Verbatim's own"
            for name in wire_properties.without_effect(config)
        ]
    return config, warnings


_DIRECT = {"consumer": "read", "producer": "written to their destinations"}


def _hosts(servers: str) -> set[str]:
    return {server.strip() for server in servers.split(",") if server.strip()}


def _hint(name: str) -> str:
    if name in _JAVA_HINTS:
        return f"; its nearest is {_JAVA_HINTS[name]}"
    near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else "; see librdkafka's CONFIGURATION.md"


def _shown(name: str, value: str) -> str:
    return "that value" if is_secret(name) else repr(value if len(value) <= 60 else value[:57] + "...")


def _checked(prop: Property, given: Given) -> Value:
    """The value as librdkafka takes it. Raises SettingsError for one that it would refuse."""
    text = given.value.strip()
    wrong = SettingsError(
        f"{given.label}: {prop.name} can't be {_shown(prop.name, given.value)}; it is of type {prop.type}"
        + (f", {prop.limits}" if prop.limits else "")
    )
    if prop.type == "str":
        return given.value
    if prop.type == "bool":
        if text.lower() not in ("true", "t", "1", "false", "f", "0"):
            raise wrong
        return "true" if text.lower() in ("true", "t", "1") else "false"
    if prop.type in ("int", "float"):
        if prop.name in ("acks", "request.required.acks") and text.lower() == "all":
            return "all"
        if not re.fullmatch(r"-?\d{1,12}" + (r"(\.\d+)?" if prop.type == "float" else ""), text, re.ASCII):
            raise wrong
        low, _, high = prop.limits.partition("..")
        if not int(low) <= float(text) <= int(high):
            raise wrong
        return int(text) if prop.type == "int" else text
    allowed = {value.lower(): value for value in prop.limits.split("|")}
    if prop.type == "flags":
        if not all(flag.strip().lower() in allowed for flag in text.split(",")):
            raise wrong
        return text
    if prop.name == "ssl.endpoint.identification.algorithm" and not text:
        return "none"  # Java's spelling of it
    if text.lower() not in allowed:
        raise wrong
    return allowed[text.lower()]


_MODULE = re.compile(
    r"\s*(\S+)\s+(?:required|requisite|sufficient|optional)\b\s*(.*?)\s*;?\s*", re.DOTALL | re.IGNORECASE
)
_OPTION = re.compile(
    r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))\s*""", re.DOTALL
)


def without_jaas(layer: Iterable[Given]) -> list[Given]:
    """The layer with Java's `sasl.jaas.config` translated to user name and password; SettingsError where it
    can't be."""
    out = []
    for given in layer:
        if given.name != "sasl.jaas.config":
            out.append(given)
            continue
        module = _MODULE.fullmatch(given.value)
        if not module or not re.search(r"\b(Plain|Scram)LoginModule$", module[1]):
            raise SettingsError(
                f"{given.label}: only one PlainLoginModule or ScramLoginModule can be read from sasl.jaas.config; "
                "set librdkafka's sasl.* properties instead (sasl.oauthbearer.*, sasl.kerberos.*)"
            )
        options, at = {}, 0
        while at < len(module[2]) and (option := _OPTION.match(module[2], at)):
            text = next(value for value in option.groups()[1:] if value is not None)
            options[option[1]] = text if option[4] is not None else _unescape(text)
            at = option.end()
        if at < len(module[2]) or not {"username", "password"} <= options.keys():
            raise SettingsError(
                f'{given.label}: sasl.jaas.config needs username="..." and password="..." and a closing ;'
            )
        out += [Given(f"sasl.{key}", options[key], given.label) for key in ("username", "password")]
    return out


def _without_stores(merged: dict[str, tuple[Given, bool]]) -> tuple[dict[str, tuple[Given, bool]], list[str]]:
    """The properties with Java's PEM key and trust stores in librdkafka's names; SettingsError for a JKS.

    Done after layers are merged, because a store's type and its place may come from different ones.
    """
    left, warnings = dict(merged), []
    for store in _STORES:
        parts = {
            name.removeprefix(f"{store}."): left.pop(name)
            for name in merged
            if name.startswith(f"{store}.") and (name in _JAVA_STORE or name in KNOWN)
        }
        if not parts:
            continue
        trust = store == "ssl.truststore"
        first, specific = parts.get("type") or parts.get("location") or next(iter(parts.values()))
        location = parts["location"][0].value if "location" in parts else ""
        if "type" in parts:
            kind = parts["type"][0].value.strip().upper()
        elif location.lower().endswith(".jks") or (trust and location):
            kind = "JKS"  # Java's default; librdkafka's own ssl.keystore.location is a PKCS#12 file
        else:
            kind = "PEM" if parts.keys() & {"certificates", "key", "certificate.chain"} else "PKCS12"
        if kind == "PKCS12" and not trust:
            left |= {f"{store}.{part}": parts[part] for part in ("location", "password") if part in parts}
            parts = {
                part: value for part, value in parts.items() if part not in ("type", "location", "password")
            }
            if parts:
                raise SettingsError(f"{first.label}: a PKCS12 key store has no {store}.{next(iter(parts))}")
            continue
        if kind != "PEM":
            what = (
                "the certificates as PEM and set ssl.ca.location"
                if trust
                else "it to PKCS12 and set ssl.keystore.type=PKCS12"
            )
            tool = "keytool -exportcert -rfc" if trust else "keytool -importkeystore -deststoretype PKCS12"
            raise SettingsError(
                f"{first.label}: {store} of type {kind} can't be read; convert {what} ({tool})"
            )
        if "password" in parts:
            if not trust:
                raise SettingsError(
                    f"{parts['password'][0].label}: a PEM key store has no password; set ssl.key.password"
                )
            warnings.append(f"{parts['password'][0].label}: ignored, a PEM trust store has no password")
        places = ("ssl.ca.location",) if trust else ("ssl.certificate.location", "ssl.key.location")
        names = {"location": places, "certificates": ("ssl.ca.pem",)}
        names |= {"key": ("ssl.key.pem",), "certificate.chain": ("ssl.certificate.pem",)}
        for part, translated in names.items():
            for name in translated if part in parts else ():
                if name in left:
                    raise SettingsError(
                        f"{parts[part][0].label}: {store}.{part} and {name} are both set; keep one"
                    )
                left[name] = (Given(name, parts[part][0].value, parts[part][0].label), specific)
    return left, warnings


def compression(config: Mapping[str, Any]) -> tuple[str, int | None]:
    """The codec of a producer with these properties, and its level (None: the codec's own)."""
    level = int(config.get("compression.level", -1))
    return str(config.get("compression.type", COMPRESSION)), None if level < 0 else level


def redacted(config: Mapping[str, Value]) -> dict[str, Value]:
    """The properties with secrets hidden."""
    return {name: HIDDEN if is_secret(name) else value for name, value in config.items()}
