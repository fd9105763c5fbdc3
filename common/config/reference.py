"""The settings as a table for the reference: `python -m common.config.reference` prints it."""

from __future__ import annotations

from common.config.fields import FIELDS, LIVE, PREFIX, flag_of
from common.config.legacy import OLD_VARIABLES
from common.config.settings import Settings


def settings_table() -> str:
    """The settings as markdown tables: first those to use, then the variables of the older system."""
    rows = ["| variable | flag | meaning | default |", "|---|---|---|---|"]
    for variable, field in FIELDS.items():
        info = Settings.model_fields[field]
        if info.description:
            shown = info.json_schema_extra["shown"]  # type: ignore[index]
            marker = " *(live)*" if variable in LIVE else ""
            rows.append(f"| `{variable}` | `{flag_of(variable)}` | {info.description}{marker} | {shown} |")
    for group, meaning in (
        ("PROPERTIES", "one client property, `_` for `.`; wins over the file"),
        ("{CONSUMER,PRODUCER,ADMIN}", "the same for one kind of client; wins over both"),
    ):
        rows.append(f"| `{PREFIX}{{SOURCE,DESTINATION}}_{group}_<KEY>` | | {meaning} | none |")
    rows += ["", "| variable of the older system | now |", "|---|---|"]
    rows += [f"| `{variable}` | {successor.meaning} |" for variable, successor in OLD_VARIABLES.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(settings_table())
