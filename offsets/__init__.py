"""Consumer groups: their offsets, translated from source to destination by the offset mappings."""
