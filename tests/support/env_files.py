"""Files of variables, as compose files and Kustomize read them: a line each, as it stands."""

from __future__ import annotations


def variables_of(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return dict(line.partition("=")[::2] for line in lines)
