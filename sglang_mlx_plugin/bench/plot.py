"""An SVG plot of a record; matplotlib is the extra ``bench``."""

from __future__ import annotations

from pathlib import Path

from .metrics import METRICS, summarise
from .record import Record
from .types import BenchError
from .workloads import WORKLOADS

__all__ = ["write_svg"]


def write_svg(record: Record, path: Path) -> None:
    """Plot each workload's standing figure over its levels, a line a contestant.

    Raises:
        BenchError: Without matplotlib, or if nothing was measured.
    """
    try:
        import matplotlib
    except ImportError:
        raise BenchError(
            "The plot needs matplotlib: pip install 'sglang-mlx-plugin[bench]'."
        ) from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(workload for workload, _ in record.cells()))
    if not names:
        raise BenchError("The record holds no rounds to plot.")
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.6 * columns, 3.6 * rows), squeeze=False, layout="constrained"
    )
    for spare in axes.flat[len(names) :]:
        spare.set_visible(False)
    shown = {}
    for axis, name in zip(axes.flat, names, strict=False):
        workload = next((each for each in WORKLOADS if each.name == name), None)
        standing = workload.standing if workload else "tokens_per_s"
        metric = METRICS[standing.partition(":")[0]]
        levels = [level for cell, level in record.cells() if cell == name]
        for index, contestant in enumerate(record.names()):
            points = [
                (level, summary)
                for level in levels
                if (summary := summarise(record.of(name, level, contestant), standing))
            ]
            if not points:
                continue
            middle = [summary.median * metric.scale for _, summary in points]
            below = [(s.median - s.low) * metric.scale for _, s in points]
            above = [(s.high - s.median) * metric.scale for _, s in points]
            shown[contestant] = axis.errorbar(
                [levels.index(level) for level, _ in points],
                middle,
                yerr=[below, above],
                marker="o",
                capsize=3,
                color=f"C{index}",
                label=contestant,
            )
        axis.set_xticks(range(len(levels)), [str(level) for level in levels])
        axis.set_xlabel(workload.level_means if workload else "level")
        what = standing.replace(":", " of ").replace("_s", "").replace("_", " ")
        axis.set_ylabel(f"{what if metric.unit == 'ms' else 'output'}, {metric.unit}")
        axis.set_ylim(bottom=0)
        axis.set_title(name)
        axis.grid(alpha=0.3)
    figure.legend(
        list(shown.values()), list(shown), loc="outside upper center", ncols=4, fontsize="small"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)
