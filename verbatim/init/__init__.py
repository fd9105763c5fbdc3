"""A link's files, from what `verbatim scan` has found."""
