"""Send what a computation does as traces of OpenTelemetry: a span for each run and each call.

Needs opentelemetry-sdk. Here spans are printed; an exporter of OTLP sends them to a collector.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dask_exo
from dask_exo import events
from dask_exo.report import observing

SECOND = 10**9  # nanoseconds


class Tracer:
    """An observer that makes spans of events."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer, self._runs = tracer, dict[int, Any]()

    def __call__(self, event: events.Event) -> None:
        at = int(event.time * SECOND)
        if isinstance(event, events.RunStarted):
            self._runs[event.run] = self._tracer.start_span("compute", start_time=at)
        elif isinstance(event, events.RunFinished) and event.run in self._runs:
            self._runs.pop(event.run).end(at)
        elif isinstance(event, events.TasksFinished) and event.ran and event.run in self._runs:
            start = int(event.ran.start * SECOND)
            inside = trace.set_span_in_context(self._runs[event.run])
            span = self._tracer.start_span(event.group, inside, start_time=start)
            span.set_attributes({"tasks": event.count, "bytes": event.nbytes})
            span.end(start + int(event.ran.seconds * SECOND))


def main() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    orders = pd.DataFrame({"user": [i * 7 % 100 for i in range(1000)], "amount": range(1000)})
    ddf = dd.from_pandas(orders, npartitions=4)
    with observing(Tracer(provider.get_tracer("orders"))), dask.config.set(scheduler=dask_exo.get):
        ddf.shuffle("user").groupby("user").amount.sum().compute()
    spans = exporter.get_finished_spans()
    run = next(span for span in spans if span.name == "compute")
    assert all(span.parent.span_id == run.context.span_id for span in spans if span is not run)
    print(sorted({span.name for span in spans}))


if __name__ == "__main__":
    main()
