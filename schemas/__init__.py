"""Schemas of a link: the registry of the target kept in step with the source's."""
