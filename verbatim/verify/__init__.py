"""Compares source and destination. Shares no code with what it verifies."""
