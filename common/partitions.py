"""What a partition is called: by its topic's name, or by its topic's id. Pure."""

from __future__ import annotations

PartitionName = tuple[str, int]
"""Topic and number. The library's own `TopicPartition` has offsets and errors in it, too."""
PartitionId = tuple[str, int]
"""Topic id and number: another one, once the topic was deleted and made again."""
