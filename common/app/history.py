"""The last hour of a link, a sample each ten seconds, in memory: what was delivered in a second, lag, and how
long records took. Pure; who samples hands the time in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from common.link.lane_work import DELAYS_S, Delays

SAMPLE_S = 10.0
SAMPLES = 360


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_ms` since 1970. None: not known, or of delays that nothing was delivered."""

    at_ms: int
    records_per_second: float | None
    bytes_per_second: float | None
    lag: int | None
    p50_s: float | None
    p99_s: float | None


class History:
    """A ring of samples: the oldest makes room."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)


def columns(samples: Sequence[Sample]) -> dict[str, list[float | None]]:
    """Field -> its values, oldest first."""
    rows = [astuple(sample) for sample in samples]
    return {field.name: [row[i] for row in rows] for i, field in enumerate(fields(Sample))}


def quantile(delays: Delays, share: float) -> float | None:
    """How long, in seconds, at most so large a share of the records took, as Prometheus' histogram_quantile
    has it: even within a bucket, and never beyond the last bound. None where there are no records."""
    wanted = share * sum(delays.buckets)
    if not wanted:
        return None
    below = 0
    for lowest, bound, count in zip((0.0, *DELAYS_S), DELAYS_S, delays.buckets, strict=False):
        if count and below + count >= wanted:
            return lowest + (bound - lowest) * (wanted - below) / count
        below += count
    return DELAYS_S[-1]
