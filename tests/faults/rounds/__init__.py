"""Fault rounds: real brokers and processes under load, faults by name and by chance, an independent look at
the outcome."""
