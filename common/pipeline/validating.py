"""The stage `validate`: JSON held against a JSON Schema. Needs the extra `validate`. Pure; nothing is
fetched.

What a record fails on is told by keywords of the schema, never by what the record holds.
"""

from __future__ import annotations

import json
from typing import Any

from common.errors import SettingsError
from common.pipeline.batch import Batch, Done, Run, flags
from common.pipeline.json_fields import EMPTY, NO_JSON, TOO_DEEP, Shape
from common.pipeline.stages import Validate, references


def validating(options: Validate, stage: str) -> Run:
    """Raises SettingsError, which names the stage, where the schema is none, or the extra is missing."""
    validator = _validator(options.json_schema, stage)
    whole = Shape([()])
    side = options.side

    def run(batch: Batch) -> Done:
        looked = whole.look(batch.side(side))
        failed = dict(looked.bad)
        for row, raw in zip(looked.found[0].rows, looked.found[0].raws, strict=True):
            if raw is not EMPTY and row not in failed and (why := _misfit(validator, bytes(raw))):
                failed[row] = why
        return Done(
            batch, flags(len(batch)), failed={row: f"the {side} {why}" for row, why in failed.items()}
        )

    return run


def _validator(schema: dict[str, Any], stage: str) -> Any:
    try:
        from jsonschema import SchemaError
        from jsonschema.validators import Draft202012Validator, validator_for
        from referencing import Registry, Resource
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012
    except ImportError:
        raise SettingsError(f"{stage} needs the extra validate: install verbatim-kafka[validate]") from None
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise SettingsError(f"{stage}: the schema is none, at {error.json_path}: {error.message}") from None
    # With a registry of its own it asks nobody for what it does not know.
    registry: Any = Registry()
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = registry.with_resource("", resource).resolver()
    for ref in references(schema):
        try:
            resolver.lookup(ref)
        except Unresolvable:
            raise SettingsError(f"{stage}: the schema has no {ref}") from None
    return kind(schema, registry=registry)


def _misfit(validator: Any, text: bytes) -> str | None:
    try:
        error = next(validator.iter_errors(json.loads(text)), None)
    except RecursionError:
        return TOO_DEEP
    except ValueError:
        return NO_JSON
    return None if error is None else f"does not fit the schema: {_keywords(error)}"


def _keywords(error: Any) -> str:
    return "/".join(map(str, error.absolute_schema_path))
