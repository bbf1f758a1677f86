"""The pass: maximal parts of an expression that rules cover become one task a partition."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from dask_exo.compile.query import Query
from dask_exo.compile.terms import Table
from dask_exo.compile.translate import (
    NotCoveredError,
    Translator,
    constant_of,
    is_source,
    reader_of,
)
from dask_exo.dask_adapter import (
    Blockwise,
    CoreExpr,
    DelayedExpr,
    FusedIO,
    Task,
    is_valid_blockwise_op,
)
from dask_exo.events import QueriesCompiled


class Compiled(Blockwise):
    """An expression that a `Query` computes from the files that its source reads."""

    _parameters = ["original", "query"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _name(self) -> str:
        return f"polars-query-{self.deterministic_token}"

    @functools.cached_property
    def _meta(self) -> Any:
        return self.original._meta

    def _divisions(self) -> tuple[Any, ...]:
        return tuple(self.original.divisions)

    def dependencies(self) -> list[Any]:
        """Return nothing: it reads its source itself."""
        return []

    @functools.cached_property
    def _nodes(self) -> list[Any]:
        return _distinct(self.original)

    def _task(self, name: Any, index: int) -> Task:
        (source,) = filter(is_source, self._nodes)
        reader = reader_of(source)
        is_fused = isinstance(source, FusedIO)
        numbers = source._fusion_buckets[index] if is_fused else [reader._partitions[index]]
        constants, tasks = {}, []
        for node in self._nodes:
            if isinstance(node, DelayedExpr):
                constants[node._name, 0] = constant_of(node)
            else:
                tasks.append(node._task((node._name, index), index))
        plain = functools.partial(Task.fuse(*tasks, key=(self.original._name, index)), constants)
        parts = [reader._plan["parts"][number] for number in numbers]
        return Task(name, Query.run, self.query, reader._io_func, parts, plain, _data_producer=True)


class Compilation(NamedTuple):
    """Replacements of expressions by name, and what is said about them."""

    replacements: Mapping[str, CoreExpr]
    seen: QueriesCompiled | None


NOTHING = Compilation({}, None)


def compiled(expr: CoreExpr, *, verify: bool = False) -> Compilation:
    """Find the maximal parts of an optimized expression that rules cover, and do more than read.

    A source is read once: if several parts need it, none is compiled, unless one of them is in all
    others.
    """
    parts, reasons = _maximal_parts(expr)
    replacements: dict[str, CoreExpr] = {}
    operations: set[str] = set()
    for found in parts.values():
        trees = [{each._name for each in node.walk()} for node, _ in found]
        first = [part for part in found if all(part[0]._name in tree for tree in trees)]
        if first and _does_more_than_read(first[0][1]):
            node, table = first[0]
            (source,) = (each for each in _distinct(node) if each._name == table.source)
            query = Query.of(table, node._meta, source._meta, verify=verify)
            replacements[node._name] = Compiled(node, query)  # type: ignore[no-untyped-call]
            operations |= {each._name for each in _distinct(node)} - {source._name}
        elif len(found) > 1:
            reasons["a file that several parts of the computation read"] += 1
    if not (replacements or reasons):
        return NOTHING
    blockwise = sum(is_valid_blockwise_op(n) and not is_source(n) for n in _distinct(expr))
    seen = QueriesCompiled(len(replacements), len(operations), blockwise, dict(reasons))
    return Compilation(replacements, seen)


def _maximal_parts(
    expr: CoreExpr,
) -> tuple[dict[str, list[tuple[CoreExpr, Table]]], Counter[str]]:
    """Return the covered expressions below others, by source, and the reasons of those others."""
    translator, reasons = Translator(), Counter[str]()
    parts: dict[str, list[tuple[CoreExpr, Table]]] = defaultdict(list)
    covered: dict[str, bool] = {}

    def visit(node: CoreExpr) -> None:
        if node._name in covered:
            return
        try:
            table = translator.result(node)
        except NotCoveredError as error:
            covered[node._name] = False
            for each in node.dependencies():
                visit(each)
            if is_valid_blockwise_op(node) and any(covered[n._name] for n in node.dependencies()):
                reasons[str(error)] += 1
        else:
            covered[node._name] = True
            parts[table.source].append((node, table))

    visit(expr)
    return parts, reasons


def _distinct(expr: CoreExpr) -> list[Any]:
    """Return the expressions of a tree, each before those it reads."""
    return list({node._name: node for node in expr.walk()}.values())


def _does_more_than_read(table: Table) -> bool:
    return bool(table.conditions) or any(each.operation != "column" for each in table.terms())
