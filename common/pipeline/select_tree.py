"""What a SELECT of the stage `sql` may say: `SELECT * REPLACE (…) FROM records WHERE …`, of functions that go
by nothing but what they are given. By DuckDB's own syntax tree: what in it is not known here is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE = "records"
REPLACED = ("timestamp", "key", "value", "headers")
"""The columns that may be made anew."""
COLUMNS = ("topic", "partition", "offset", *REPLACED)
_FORM = "write SELECT * REPLACE (expression AS column) FROM records WHERE condition"
_SETTINGS = (
    # What comes out goes by no clock, zone, file or machine, nor by how long a condition took before.
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
    "SET threads = 1",
    "PRAGMA disable_optimizer",
    "SET lock_configuration = true",
)
_CLASSES = {
    *("CONSTANT", "COLUMN_REF", "FUNCTION", "OPERATOR", "COMPARISON", "CONJUNCTION"),
    *("CASE", "CAST", "BETWEEN", "LAMBDA", "TYPE"),
}
_SAID = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "ORDER_MODIFIER": "ORDER BY",
    "LIMIT_MODIFIER": "LIMIT",
    "LIMIT_PERCENT_MODIFIER": "LIMIT",
    "DISTINCT_MODIFIER": "DISTINCT",
    "SET_OPERATION_NODE": "a set operation",
    "cte_map": "WITH",
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "aggregate_handling": "GROUP BY",
}
"""Words for what is refused, by DuckDB's; for others, these."""
_LOOKED_AT = {"type", "modifiers", "select_list", "from_table", "where_clause", "query_location"}
_NOTHING: tuple[Any, ...] = (None, [], "", False, {"map": []}, "STANDARD_HANDLING")
_OF_STAR = {"class", "type", "query_location", "query_location_length", "relation_name", "replace_list"}
_OF_TABLE = {"type", "table_name", "query_location", "query_location_length", "qualified_name"}
_CLOCKS = re.compile(r"current_|get_current|local_?time")
"""What is a function, or a column, as it is written."""


@lru_cache(maxsize=1)
def _database() -> DuckDBPyConnection:
    """In memory, and reaches nothing outside."""
    import duckdb

    made = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        made.execute(setting)
    return made


def connection() -> DuckDBPyConnection:
    """A new one; what is registered there is its own."""
    return _database().cursor()


class SelectTree:
    """A SELECT. `replaced`: which columns it makes anew; `columns`: which it takes."""

    def __init__(self, text: str) -> None:
        """Raises ValueError, which says what it may not say."""
        node = _parsed(text)
        if node["type"] != "SELECT_NODE":
            raise ValueError(f"not row by row: {_said(node['type'])}; {_FORM}")
        for modifier in node["modifiers"]:
            raise ValueError(f"not row by row: {_said(modifier['type'])}")
        for name, value in node.items():
            if name not in _LOOKED_AT and value not in _NOTHING:
                raise ValueError(f"not row by row: {_said(name)}")
        _check_table(node["from_table"])
        replacing = _replacing(node["select_list"])
        self.replaced = frozenset(name for name, _ in replacing)
        taken = {"offset", *self.replaced}
        for expression in [*(made for _, made in replacing), node["where_clause"]]:
            taken |= set(_columns_of(expression))
        self.columns = tuple(name for name in COLUMNS if name in taken)


def _said(word: str) -> str:
    return _SAID.get(word, word.lower().replace("_", " "))


def _parsed(text: str) -> Any:
    """The node of the one SELECT in a text. Raises ValueError."""
    told = json.loads(_asked("SELECT json_serialize_sql(?)", text)[0][0])
    if told["error"]:
        raise ValueError(f"no SELECT, as DuckDB has it: {told.get('error_message', '')}".partition("\n")[0])
    if len(told["statements"]) != 1:
        raise ValueError("one SELECT is meant")
    return told["statements"][0]["node"]


def _asked(question: str, *given: str) -> list[Any]:
    return connection().execute(question, list(given)).fetchall()


def _check_table(table: dict[str, Any]) -> None:
    more = [name for name, value in table.items() if name not in _OF_TABLE and value not in _NOTHING]
    if table["type"] != "BASE_TABLE" or more or str(table["table_name"]).lower() != TABLE:
        raise ValueError(f"it reads something else than {TABLE}: {_FORM}")


def _replacing(chosen: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    if len(chosen) != 1 or chosen[0]["class"] != "STAR":
        raise ValueError(_FORM)
    star = chosen[0]
    if any(name not in _OF_STAR and value not in _NOTHING for name, value in star.items()):
        raise ValueError(_FORM)
    found = [(str(one["key"]).lower(), one["value"]) for one in star["replace_list"]]
    for name, _ in found:
        if name not in REPLACED:
            raise ValueError(f"{name} can't be replaced; there are {', '.join(REPLACED)}")
    return found


def _columns_of(expression: Any, known: frozenset[str] = frozenset()) -> Iterator[str]:
    """The columns that it takes. Raises ValueError where it goes by more than these. `known`: other names."""
    for node, names in _walked(expression, known):
        kind = node["class"]
        if kind == "FUNCTION":
            _check_function(node)
        elif kind == "COLUMN_REF":
            path = [str(part).lower() for part in node["column_names"]]
            if path[0] == TABLE and len(path) > 1:
                del path[0]
            if path[0] in names:
                continue
            if path[0] not in COLUMNS:
                why = "goes by the clock" if _CLOCKS.match(path[0]) else f"there are {', '.join(COLUMNS)}"
                raise ValueError(f"there is no column {path[0]}: {why}")
            yield path[0]
        elif kind not in _CLASSES or node["type"] == "GROUPING_FUNCTION":
            raise ValueError(f"not row by row: {_said(kind)}")


def _walked(node: Any, names: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """All expressions, and the names of parameters of lambdas that each is in."""
    if isinstance(node, dict):
        if node.get("class") == "LAMBDA":
            names |= {
                str(one["column_names"][0]).lower()
                for side in node.values()
                for one, _ in _walked(side if side is not node.get("expr") else None, frozenset())
                if one["class"] == "COLUMN_REF"
            }
        if "class" in node:
            yield node, names
        for inner in node.values():
            yield from _walked(inner, names)
    elif isinstance(node, list):
        for inner in node:
            yield from _walked(inner, names)


def _check_function(node: dict[str, Any]) -> None:
    name = str(node["function_name"]).lower()
    if node.get("filter") is not None or node.get("distinct") or node["order_bys"]["orders"]:
        raise ValueError(f"{name} is an aggregate as it is written")
    _check_name(name, frozenset())
    if name == "age" and len(node.get("arguments", node.get("children", []))) < 2:
        # DuckDB has it for one that goes by nothing else (2.0.1).
        raise ValueError("age of one time goes by the clock")


@lru_cache(maxsize=4096)
def _check_name(name: str, within: frozenset[str]) -> None:
    """Raises ValueError for a function that goes by more than what it is given. `within`: the macros that it
    is in."""
    found = _asked(
        "SELECT function_type, stability, macro_definition FROM duckdb_functions() WHERE lower(function_name) = ?",
        name,
    )
    kinds = {kind for kind, _, _ in found}
    stable = {stability for kind, stability, _ in found if kind == "scalar"}
    if _CLOCKS.match(name):
        raise ValueError(f"{name} goes by the clock or the session")
    if "macro" in kinds:
        for _, _, body in found:
            if body is not None and name not in within:
                for inner in set(_functions_in(f"SELECT {body}")):
                    _check_name(inner, within | {name})
    elif "scalar" in kinds:
        if "VOLATILE" in stable:
            raise ValueError(f"{name} is volatile: twice it may be two things")
        if "CONSISTENT" not in stable:
            raise ValueError(f"{name} goes by the clock or the session")
    elif kinds:
        raise ValueError(f"{name} is {'an aggregate' if 'aggregate' in kinds else 'no function of a row'}")


def _functions_in(text: str) -> Iterator[str]:
    """Of a macro. A column that is none may be a clock."""
    for node, _ in _walked(_parsed(text)["select_list"], frozenset()):
        if node["class"] == "FUNCTION":
            yield str(node["function_name"]).lower()
        elif node["class"] == "COLUMN_REF" and _CLOCKS.match(str(node["column_names"][0]).lower()):
            yield str(node["column_names"][0]).lower()
        elif node["class"] not in _CLASSES | {"COLUMN_REF"}:
            raise ValueError(f"not row by row: {_said(node['class'])}")
