"""Phase 1: source topics into frames on the staging topic, at least once and in order."""
