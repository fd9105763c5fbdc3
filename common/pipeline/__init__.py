"""Pipelines: what a file says is to be done with records on their way, and the doing, a batch at a time.
Pure: where records come from and what becomes of those that fail is left to the applications."""
