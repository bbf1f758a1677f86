"""Terms: how a column is computed, as plain tuples that tasks can pickle.

Elementwise operations give the same values before a filter as after it. So a chain of projections,
assignments and filters needs no plan of its own: it is some columns, each a `Term` over the columns
of the source, and some conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Term(NamedTuple):
    """An operation of `dask_exo.compile.rules.RULES`, its inputs, and constants."""

    operation: str
    inputs: tuple[Term, ...] = ()
    constants: tuple[Any, ...] = ()


def column(name: str) -> Term:
    """Return the term of a column of the source."""
    return Term("column", (), (name,))


def sources(term: Term) -> set[str]:
    """Return the columns of the source that a term reads."""
    if term.operation == "column":
        return {term.constants[0]}
    return set().union(*map(sources, term.inputs))


@dataclass(frozen=True)
class ComputedColumn:
    """A term and the dtype of its values in pandas."""

    term: Term
    dtype: Any


@dataclass(frozen=True)
class Table:
    """Columns of the rows of a source for which all ``conditions`` hold.

    ``source`` is the name of the expression that reads it. A series has one column.
    """

    source: str
    columns: dict[Any, ComputedColumn]
    conditions: tuple[Term, ...] = ()
    series: bool = False

    def same_rows(self, other: Table) -> bool:
        """Return whether two tables have the same rows."""
        mine, others = frozenset(self.conditions), frozenset(other.conditions)
        return (self.source, mine) == (other.source, others)

    @property
    def only(self) -> ComputedColumn:
        """The column of a series."""
        (found,) = self.columns.values()
        return found

    def select(self, columns: dict[Any, ComputedColumn], *, series: bool = False) -> Table:
        """Return a table of other columns of the same rows."""
        return replace(self, columns=columns, series=series)

    def where(self, *conditions: Term) -> Table:
        """Return the rows for which some conditions hold too."""
        new = tuple(each for each in conditions if each not in self.conditions)
        return replace(self, conditions=self.conditions + new)

    def terms(self) -> tuple[Term, ...]:
        """Return all terms."""
        return (*(each.term for each in self.columns.values()), *self.conditions)
