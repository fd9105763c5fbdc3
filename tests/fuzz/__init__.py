"""Hostile bytes, guided by what they reach: python -m tests.fuzz."""
