"""The stage `headers`: which headers records keep, what they are called, and which are added. Pure.

Verbatim's own headers are left as they are: without them a link could not tell that a record goes round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from common.kafka.wire.records import Item
from common.pipeline import templates
from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.options import OWN_HEADERS
from common.pipeline.stages import Headers


def changing_headers(options: Headers) -> Run:
    keep = None if options.keep is None else _any(options.keep)
    remove = _any(options.remove)

    def goes(name: str) -> bool:
        if name.startswith(OWN_HEADERS):
            return False
        return (keep is not None and not keep(name)) or remove(name)

    def run(batch: Batch) -> Done:
        headers = batch.headers
        changed = flags(len(batch), range(len(batch)) if options.set or options.add else ())
        if (which := headers.named(goes)).any():
            changed[headers.rows[which]] = True
            headers = headers.without(which)
        if (which := headers.named(options.rename.__contains__)).any():
            changed[headers.rows[which]] = True
            headers = headers.renamed(options.rename)
        if (which := headers.named(options.set.__contains__)).any():
            headers = headers.without(which)
        for name, template in (*options.set.items(), *options.add.items()):
            headers = headers.appended(name, _values(template, batch))
        if headers is not batch.headers:
            batch = batch.with_column("headers", headers.to_arrow())
        return Done(batch, changed)

    return run


def _any(expressions: Sequence[str]) -> Callable[[str], bool]:
    compiled = [re.compile(expression, re.DOTALL) for expression in expressions]
    return lambda name: any(expression.fullmatch(name) for expression in compiled)


def _values(template: str | None, batch: Batch) -> list[Item]:
    if template is None:
        return [None] * len(batch)
    if templates.is_constant(template):
        origin = batch.origin
        text = template.format(link=origin.link, topic=origin.topic, partition=origin.partition)
        return [text.encode()] * len(batch)
    return [template.format_map(place).encode() for place in batch.places]
