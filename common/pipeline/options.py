"""What all options of a pipeline's file have in common: unknown names are refused with what was probably
meant, and an error says where it stands. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from common.pipeline import templates
from common.pipeline.paths import parse

OWN_HEADERS = "verbatim."
"""Headers whose names begin so are Verbatim's own: no stage sees or changes them."""


def wrong(message: str, *at: str | int) -> PydanticCustomError:
    """An error of the file. `at`: where, below the model that is being checked."""
    return PydanticCustomError("pipeline", "{message}", {"message": message, "at": at})


class located:  # noqa: N801 - used as a function is, as contextlib's are
    """What is raised inside gets the place in front of its own."""

    def __init__(self, *at: str | int) -> None:
        self._at = at

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PydanticCustomError):
            context = error.context or {}
            raise wrong(context["message"], *self._at, *context["at"]) from None


def checked(check: Callable[[str], object]) -> AfterValidator:
    """Text that a function takes without ValueError."""

    def validated(text: str) -> str:
        try:
            check(text)
        except (ValueError, OverflowError, RecursionError) as error:
            raise wrong(str(error)) from None
        return text

    return AfterValidator(validated)


def expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None


def _header_name(text: str) -> str:
    if text.startswith(OWN_HEADERS):
        raise ValueError(f"headers that begin with {OWN_HEADERS} are Verbatim's own")
    return text


PathText = Annotated[str, checked(parse)]
Expression = Annotated[str, checked(expression)]
Template = Annotated[str, checked(templates.check)]
HeaderName = Annotated[str, checked(_header_name)]


class Model(BaseModel):
    """Options of the file. What is not known, or not built, is refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)
    NOT_BUILT: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        if isinstance(given, dict):
            known = [info.alias or name for name, info in cls.model_fields.items()]
            for name in given:
                if name in cls.NOT_BUILT:
                    raise wrong(f"{name} is not built yet", name)
                if name not in known:
                    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
                    meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
                    raise wrong(f"there is no {name} here{meant}", name)
        return given
