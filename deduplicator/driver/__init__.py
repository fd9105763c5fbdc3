"""What the deduplicator's driver does: destinations, their access rules, trimming of staging."""
