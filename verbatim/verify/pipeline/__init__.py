"""Pipelines in a second implementation, one record at a time, for `verbatim verify`: shares no code with the
engine that it verifies."""
