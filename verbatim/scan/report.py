"""How what `verbatim scan` found is shown to people: some lines of text, or a page that is one file. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import Any

from common.app.page import policy
from verbatim.links.summary import age
from verbatim.plan.report import size

Cell = tuple[str, float | None]
"""What stands there, and the number to sort by; None: the text counts."""


def as_text(found: dict[str, Any]) -> str:
    groups = "?" if found["groups"] is None else len(found["groups"])
    partitions = sum(t["partitions"] for t in found["topics"])
    head = f"{len(found['brokers'] or ())} brokers, {len(found['topics'])} topics, {partitions} partitions, {groups} groups"
    lines = [f"cluster {found['cluster']}: {head}"]
    lines += [f"{name}: {value}" for name, value in takes(found["moving"])]
    lines += [f"not read: {one['what']}: {one['why']}" for one in found["unread"]]
    lines += [f"in the way: {one}" for one in found["in_the_way"]]
    return "\n".join(lines)


def takes(m: dict[str, Any]) -> list[tuple[str, str]]:
    """What moving takes, line by line."""
    cpu, costs = m["cpu_seconds"], m["costs"]
    found = [
        ("to copy", f"{size(m['copy_bytes'])}, and {size(m['inflow_bytes_per_second'])}/s that come"),
        ("disk at the destinations", f"{size(m['disk_bytes'])} with replicas"),
        ("disk for staging", f"{size(m['staging_bytes'])} with replicas"),
        (
            "between replicas",
            f"{size(m['between_replicas_bytes'])}, across zones where replicas have their own",
        ),
        ("CPU", ", ".join(f"{name.replace('_', ' ')} {age(seconds)}" for name, seconds in cpu.items())),
    ]
    if m["line_mbit"] is not None:
        takes_s = (
            "never: as much comes as the line or a core can carry"
            if m["seconds"] is None
            else age(m["seconds"])
        )
        found.append((f"time by a line of {m['line_mbit']:,.0f} Mbit/s", takes_s))
    names = {
        "line": "price of the line",
        "zones": "price of crossing zones",
        "disk_a_month": "price of disks a month",
    }
    found += [(names[name], f"{price:,.2f}") for name, price in costs.items()]
    if m["unknown"]:
        found.append(("not in these figures, for want of a size", ", ".join(m["unknown"])))
    return found


def as_html(found: dict[str, Any]) -> str:
    """The page: nothing in it is fetched from elsewhere, and what was found is text in it, whatever it is."""
    topics = (
        [
            _text(t["topic"]),
            _count(t["partitions"]),
            _count(t["replication_factor"]),
            (size(t["bytes"]) if t["bytes"] is not None else "?", t["bytes"] or 0.0),
            _count(t["records"]),
            _count(t["records_per_second"]),
            _text(_seen(t["codecs"])),
            _text(_seen(t["formats"])),
            (size(t["batch_bytes"]) if t["batch_bytes"] is not None else "?", t["batch_bytes"] or 0.0),
            _text(", ".join(f"{key}={value}" for key, value in t["config"].items()) or "?"),
        ]
        for t in found["topics"]
    )
    groups = (
        [
            _text(g["group"]),
            _text(g["type"]),
            _text("has members" if g["active"] else "empty"),
            _count(g["lag"]),
        ]
        for g in found["groups"] or ()
    )
    quotas = (
        [
            _text(", ".join(f"{kind} {name or '(default)'}" for kind, name in q["entity"].items())),
            _text(", ".join(f"{key}={value:g}" for key, value in q["limits"].items())),
        ]
        for q in found["quotas"] or ()
    )
    heads = "Topic|Partitions|Replicas|Size|Records|Records/s|Compression|Format|Batch|Configuration"
    acls = "?" if found["topic_acls"] is None else f"{found['topic_acls']:,}"
    page = Template(resources.files("verbatim.scan").joinpath("page.html").read_text("utf-8")).substitute(
        cluster=escape(found["cluster"]),
        counts=f"{len(found['brokers'] or ())} brokers, {len(found['topics'])} topics, access rules on topics: {acls}",
        takes="".join(
            f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in takes(found["moving"])
        ),
        way=_list(found["in_the_way"], "Nothing that was looked at."),
        unread=_list((f"{one['what']}: {one['why']}" for one in found["unread"]), "Everything was read."),
        topics=_table(heads, topics),
        groups=_table("Group|Type|State|Lag", groups),
        quotas=_table("For|Limits", quotas),
    )
    return page.replace("<!-- policy -->", _meta(page), 1)


def _meta(page: str) -> str:
    allowed = "; ".join(one for one in policy(page).split("; ") if not one.startswith("frame-ancestors"))
    return f'<meta http-equiv="Content-Security-Policy" content="{escape(allowed)}">'


def _text(value: str) -> Cell:
    return value, None


def _count(value: float | None) -> Cell:
    return ("?", -1.0) if value is None else (f"{value:,.0f}", float(value))


def _seen(counts: dict[str, int]) -> str:
    return ", ".join(counts) or "?"


def _list(lines: Iterable[str], none: str) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines) or f"<li>{none}</li>"


def _table(heads: str, rows: Iterable[list[Cell]]) -> str:
    head = "".join(f'<th scope="col"><button type="button">{one}</button></th>' for one in heads.split("|"))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(cell: Cell) -> str:
    words, number = cell
    sorts = "" if number is None else f' class="number" data-sort="{number}"'
    return f"<td{sorts}>{escape(words)}</td>"
