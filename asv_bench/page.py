"""Write docs/benchmarks.md from the newest results of asv: ``python -m asv_bench.page``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.machine import Machine
from asv.results import Results
from asv.util import human_value

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Each benchmark of `asv_bench/benchmarks`, run once at a small size. `python -m asv_bench.page` wrote
this page from the results of `asv run --quick` ([contributing](contributing.md) has the commands).
Single runs on a shared machine vary by a fifth. For larger data, repetitions and peers, see
[performance](performance.md).

Commit {commit}, {processors} processors, {memory} GiB; {minutes:.0f} minutes for all.

| Module | Benchmark | Result |
|---|---|---|
"""


def newest() -> tuple[Benchmarks, Results, Machine]:
    """Return the benchmarks, their newest results, and the machine that they ran on."""
    config = Config.load(str(HERE / "asv.conf.json"))
    folder = HERE / config.results_dir
    files = [path for path in folder.glob("*/*.json") if path.name != "machine.json"]
    last = max(files, key=lambda path: path.stat().st_mtime)
    config.results_dir, config.benchmark_dir = str(folder), str(HERE / config.benchmark_dir)
    machine = Machine.load(str(last.parent), machine_name=last.parent.name)
    return Benchmarks.load(config), Results.load(str(last)), machine


def rows(benchmarks: Benchmarks, results: Results) -> Iterator[str]:
    """Yield a row of the table for each benchmark and choice of its parameters."""
    for name in sorted(results.get_all_result_keys()):
        benchmark = benchmarks.get(name)
        parameters = results.get_result_params(name)
        values = results.get_result_value(name, parameters)
        if benchmark is None or values is None:
            continue
        module, _, member = name.partition(".")
        for choice, value in zip(itertools.product(*parameters), values, strict=True):
            named = zip(benchmark["param_names"], choice, strict=True)
            about = "".join(f", {key} {text.strip(chr(39))}" for key, text in named)
            yield f"| {module} | `{member}`{about} | {shown(value, benchmark['unit'])} |"


def shown(value: float | None, unit: str) -> str:
    """Return a result with its unit."""
    if value is None or value != value:
        return "failed"
    if unit in {"seconds", "bytes"}:
        return human_value(value, unit)
    return f"{value:,} {unit}" if isinstance(value, int) else f"{value:.4g} {unit}"


def main() -> None:
    """Write the page."""
    benchmarks, results, machine = newest()
    head = HEAD.format(
        commit=results.commit_hash[:8],
        processors=machine.num_cpu,
        memory=int(machine.ram) >> 30,
        minutes=sum(results.duration.values()) / 60,
    )
    PAGE.write_text(head + "\n".join(rows(benchmarks, results)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
