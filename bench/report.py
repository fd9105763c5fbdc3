"""Tables and the plot of what was measured: JSON -> Markdown and PNG. Measures nothing; the tables are
pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.copiers import NAMES, TITLES
from bench.figures import PERCENTILES, Spread, spread
from bench.latency import BARE
from bench.sitting import OTHER_SHAPES, SHAPES

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"

Result = dict[str, Any]
_TITLES = {BARE: "no copier: producer and reader on one topic", **TITLES}
_ORDER = [BARE, *NAMES]
_SHAPES = [shape.name for shape in SHAPES + OTHER_SHAPES]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first column to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(head))]

    def shown(row: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        return "| " + " | ".join([row[0].ljust(widths[0]), *cells[1:]]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([shown(lines[0]), "| " + " | ".join(rule) + " |", *map(shown, lines[1:])])


def shown(values: Iterable[float | None], form: Callable[[float], str]) -> str:
    """The middle value, and least and greatest where there are several; a hyphen where there is none."""
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    found: Spread = spread(there)
    text = form(found.median)
    return text if found.count == 1 else f"{text} ({form(found.least)} to {form(found.greatest)})"


def as_markdown(sittings: Sequence[dict[str, Any]]) -> str:
    """Everything measured, with the machine and the commands; figures of one machine are never mixed with
    another's."""
    machines = _by_machine(sittings)
    heads = [f"## On {some[0]['processor']}\n\n" if len(machines) > 1 else "" for some in machines]
    return "\n\n".join(head + _of_a_machine(some) for head, some in zip(heads, machines, strict=True))


def _of_a_machine(sittings: Sequence[dict[str, Any]]) -> str:
    results: list[Result] = [result for sitting in sittings for result in sitting["results"]]
    parts = [_about(sittings)]
    for kind, title, make in (
        ("throughput", "Catching up: throughput and cost", _throughput),
        ("latency", "Latency: producer to read-committed reader", _latency),
        ("pause", "Longest pause at a steady 1,000 records/s", _pause),
        ("recovery", "From kill -9 to the next record, at 1,000 records/s", _recovery),
    ):
        if some := [result for result in results if result["kind"] == kind]:
            parts.append(f"### {title}\n\n{make(some)}")
    if failures := [
        f"- {result['what']}: {result['error']}" for result in results if result["kind"] == "failure"
    ]:
        parts.append("### What failed\n\n" + "\n".join(failures))
    return "\n\n".join(parts)


def _by_machine(sittings: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for sitting in sittings:
        found.setdefault((str(sitting["cpus"]), sitting["processor"]), []).append(sitting)
    return list(found.values())


def of_one_machine(sittings: Sequence[dict[str, Any]], kind: str) -> list[Result]:
    """The results of a kind, of the machine that has most of them."""
    found = [
        [result for sitting in some for result in sitting["results"] if result["kind"] == kind]
        for some in _by_machine(sittings)
    ]
    return max(found, key=len, default=[])


def write(file: Path, into: Path) -> None:
    """Put the figures of a file of sittings between the markers of a document, and the plot beside it. Raises
    ValueError without markers."""
    sittings = json.loads(file.read_text())["sittings"]
    old = into.read_text() if into.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{into} must hold {BEGIN} and {END}, each once")
    before, after = old.split(BEGIN)[0], old.split(END)[1]
    picture = into.with_name("benchmarks.png")
    _plot(of_one_machine(sittings, "throughput"), of_one_machine(sittings, "latency"), picture)
    text = f"{as_markdown(sittings)}\n\n![the same as a picture]({picture.name})"
    into.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _about(sittings: Sequence[dict[str, Any]]) -> str:
    last = sittings[-1]
    lines = [
        (
            f"{last['cpus']} CPUs ({last['processor']}), {last['memory_gb']} GB; Kafka {last['kafka']}, Python {last['python']}; both brokers, the"
            " copier and the measuring clients on this one machine. Figures are medians (least to greatest) of the repetitions."
        ),
        "",
        *(f"- {sitting['at']}: `{sitting['command']}`" for sitting in sittings),
    ]
    return "\n".join(lines)


def _groups(results: Iterable[Result], *keys: str) -> dict[tuple[Any, ...], list[Result]]:
    found: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        found.setdefault(tuple(result[key] for key in keys), []).append(result)
    return found


def _throughput(results: list[Result]) -> str:
    groups = _groups(results, "shape", "copier")
    ordered = sorted(groups, key=lambda key: (_SHAPES.index(key[0]), _ORDER.index(key[1])))
    head = [
        "records",
        "copier",
        "rounds",
        "records/s",
        "MB/s",
        "CPU µs/record",
        "brokers' CPU",
        "peak memory MiB",
        "of one application",
        "B written/record",
        "started in s",
    ]
    rows = []
    for shape, copier in ordered:
        some = groups[shape, copier]
        rows.append(
            [
                shape,
                _TITLES[copier],
                str(len(some)),
                shown((r["records_per_s"] for r in some), "{:,.0f}".format),
                shown((spread([r["mb_per_s"] for r in some]).median,), "{:,.0f}".format),
                shown((r["cpu_us_per_record"] for r in some), micros),
                shown((spread([r["broker_cpu_us_per_record"] for r in some]).median,), micros),
                shown((max(r["peak_bytes"] for r in some) / 2**20,), "{:,.0f}".format),
                shown((max(_greatest(r) for r in some) / 2**20,), "{:,.0f}".format),
                shown(
                    (spread([r["written_bytes"] / r["written_records"] for r in some]).median,),
                    "{:,.0f}".format,
                ),
                shown((spread([r["started_s"] for r in some]).median,), "{:.1f}".format),
            ]
        )
    return table(head, rows)


def micros(value: float) -> str:
    """Microseconds, to what is seen of them in several rounds."""
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _greatest(result: Result) -> int:
    """Bytes of the application that had most."""
    return int(max(result["peak_bytes_by_process"].values()))


def _latency(results: list[Result]) -> str:
    groups = _groups(results, "rate", "copier")
    ordered = sorted(groups, key=lambda key: (key[0], _ORDER.index(key[1])))
    head = [
        "copier",
        "records/s",
        "sent/s",
        "rounds",
        *(f"p{percent:g} ms" for percent in PERCENTILES),
        "longest ms",
        "cores",
        "missing",
        "repeated",
    ]
    rows = []
    for rate, copier in ordered:
        some = groups[rate, copier]
        rows.append(
            [
                _TITLES[copier],
                f"{rate:,}",
                shown((min(r["sent_per_s"] for r in some),), "{:,.0f}".format),
                str(len(some)),
                *(shown((r[f"p{percent:g}_ms"] for r in some), "{:,.0f}".format) for percent in PERCENTILES),
                shown((max((r["longest_ms"] or 0.0) for r in some),), "{:,.0f}".format),
                shown((spread([r["cores"] for r in some]).median,), "{:.2f}".format),
                f"{sum(r['missing'] for r in some):,}",
                f"{sum(r['repeated'] for r in some):,}",
            ]
        )
    return table(head, rows)


def _pause(results: list[Result]) -> str:
    head = [
        "copier",
        "minutes",
        "longest pause s",
        "longest wait ms",
        "p50 ms",
        "p99.9 ms",
        "missing",
        "repeated",
    ]
    return table(
        head,
        (
            [
                _TITLES[r["copier"]],
                f"{r['seconds'] / 60:.1f}",
                shown((r["longest_pause_s"],), "{:.2f}".format),
                shown((r["longest_ms"],), "{:,.0f}".format),
                shown((r["p50_ms"],), "{:,.0f}".format),
                shown((r["p99.9_ms"],), "{:,.0f}".format),
                str(r["missing"]),
                str(r["repeated"]),
            ]
            for r in sorted(results, key=lambda r: _ORDER.index(r["copier"]))
        ),
    )


def _recovery(results: list[Result]) -> str:
    groups = _groups(results, "copier", "application", "more")
    head = [
        "copier",
        "killed",
        "records before",
        "kills",
        "next record s",
        "in every partition s",
        "state table KiB",
        "missing",
        "repeated",
    ]
    rows = [
        [
            _TITLES[copier],
            application,
            f"{min(r['copied'] for r in some):,}",
            str(len(some)),
            shown((r["next_record_s"] for r in some), "{:.1f}".format),
            shown((r["every_partition_s"] for r in some), "{:.1f}".format),
            str(max(r["state_bytes"] for r in some) >> 10),
            str(max(r["missing"] for r in some)),
            str(max(r["repeated"] for r in some)),
        ]
        for (copier, application, _), some in sorted(
            groups.items(), key=lambda item: _ORDER.index(item[0][0])
        )
    ]
    return table(head, rows)


def _plot(catching_up: list[Result], latency: list[Result], file: Path) -> None:
    """Throughput, CPU, latency: each copier in its own colour."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (rate_axes, cpu_axes, wait_axes) = plt.subplots(1, 3, figsize=(16, 4.5), constrained_layout=True)
    throughput = _groups(catching_up, "shape", "copier")
    shapes = [shape for shape in _SHAPES if any(key[0] == shape for key in throughput)]
    names = [name for name in _ORDER if any(key[1] == name for key in throughput)]
    for axes, value, title in (
        (rate_axes, "records_per_s", "records/s when catching up"),
        (cpu_axes, "cpu_us_per_record", "CPU µs a record"),
    ):
        for index, name in enumerate(names):
            bars = [
                (i, spread([r[value] for r in throughput[s, name]]))
                for i, s in enumerate(shapes)
                if (s, name) in throughput
            ]
            width = 0.8 / len(names)
            middles = [found.median for _, found in bars]
            axes.bar(
                [i + (index - (len(names) - 1) / 2) * width for i, _ in bars],
                middles,
                width,
                yerr=[
                    [found.median - found.least for _, found in bars],
                    [found.greatest - found.median for _, found in bars],
                ],
                color=f"C{_ORDER.index(name)}",
                label=_TITLES[name],
            )
        axes.set_xticks(range(len(shapes)), shapes, rotation=30, ha="right")
        axes.set_title(title)
        axes.set_yscale("log" if len(shapes) > 3 else "linear")
    waits = _groups(latency, "copier", "rate")
    for name in (name for name in _ORDER if any(key[0] == name for key in waits)):
        rates = sorted(key[1] for key in waits if key[0] == name)
        for percent, style in ((50, "-"), (99, "--")):
            points = [
                (rate, spread(there).median)
                for rate in rates
                if (
                    there := [
                        r[f"p{percent}_ms"] for r in waits[name, rate] if r[f"p{percent}_ms"] is not None
                    ]
                )
            ]
            wait_axes.plot(
                [rate for rate, _ in points],
                [wait for _, wait in points],
                style,
                marker="o",
                color=f"C{_ORDER.index(name)}",
                label=f"{_TITLES[name]}, p{percent}",
            )
    wait_axes.set_title("latency in ms by records/s")
    wait_axes.set_xscale("log")
    wait_axes.set_yscale("log")
    for axes in (rate_axes, wait_axes):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    figure.savefig(file, dpi=110)
    plt.close(figure)
