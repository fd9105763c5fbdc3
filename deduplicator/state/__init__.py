"""The Delta tables: a snapshot of the mappings, and their history."""
