"""A program whose classes are those of `__main__`: prints which of them came back as themselves.

Usage: identity.py ray|threads|pipeline. Run by `test_identity`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import typing

import dask
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo

T = typing.TypeVar("T")


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    def __lt__(self, other: Color) -> bool:
        return self.value < other.value


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int


class Row(typing.NamedTuple):
    a: int


class Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class Child(Plain):
    pass


class Box(typing.Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item


class Outer:
    class Inner:
        pass


class Large:
    def __init__(self) -> None:
        self.array = np.ones(100_000)


class CodeError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def closure() -> type:
    class Local:
        def __eq__(self, other: object) -> bool:
            return type(other) is Local

        __hash__ = None

    return Local


Local = closure()
CELL = """
@dataclasses.dataclass(frozen=True)
class Cell:
    x: int

def cell(i):
    return Cell(i)
"""
exec(CELL)
first = cell(1)  # noqa: F821
exec(CELL)  # as a notebook does where a cell runs again


def color(i: int) -> Color:
    return Color.RED if i % 2 else Color.BLUE


def fail() -> None:
    raise CodeError(7)


def count(values: list[object], kind: type) -> int:
    return sum(isinstance(value, kind) for value in values)


def delayed_values() -> typing.Iterator[tuple[str, bool]]:
    def made(function, *args):
        return dask.delayed(function)(*args).compute()

    colors = dask.compute(*[dask.delayed(color)(i) for i in range(6)])
    yield "enum", sum(one is Color.RED for one in colors) == 3
    yield "set of enums", len({*colors, Color.RED, Color.BLUE}) == 2
    yield "flag", made(lambda: Level.LOW | Level.HIGH) == Level.LOW | Level.HIGH
    yield "dataclass", made(Point, 1, 2) == Point(1, 2)
    yield "named tuple", isinstance(made(Row, 1), Row)
    yield "plain class", type(made(Plain, 1)) is Plain
    yield "subclass", isinstance(made(Child, 1), Plain)
    yield "generic", isinstance(made(Box, 1), Box)
    yield "generic alias", made(lambda: Box[int]) == Box[int]
    yield "nested class", isinstance(made(Outer.Inner), Outer.Inner)
    yield "class of a closure", made(Local) == Local()
    yield "large value", isinstance(made(Large), Large)
    yield "class itself", made(lambda: Point) is Point
    yield (
        "exception as a value",
        isinstance(made(CodeError, 3), CodeError) and made(CodeError, 3).code == 3,
    )
    yield "gathered", made(count, [dask.delayed(Point)(i, i) for i in range(50)], Point) == 50
    yield "argument", made(lambda one: one is Color.RED, Color.RED)
    yield "key of a mapping", made(lambda given: given.get(Color.RED), {Color.RED: 5}) == 5
    try:
        made(fail)
    except CodeError as error:
        yield "exception", error.code == 7
    yield "redefined class", isinstance(made(cell, 1), Cell)  # noqa: F821
    yield "class before that", type(made(lambda one: one, first)) is type(first)
    kept = dask.persist(*[dask.delayed(Point)(1, 1) for _ in range(4)])
    same = [dask.delayed(lambda point: point == Point(1, 1))(one) for one in kept]
    yield "persisted", all(dask.compute(*same)) and kept[0].compute() == Point(1, 1)


def bags() -> typing.Iterator[tuple[str, bool]]:
    bag = db.range(6, npartitions=3).map(color)
    yield "bag.frequencies", dict(bag.frequencies().compute()) == {Color.RED: 3, Color.BLUE: 3}
    yield "bag.distinct", set(bag.distinct().compute()) == {Color.RED, Color.BLUE}
    yield "bag.filter", bag.filter(lambda one: one is Color.RED).count().compute() == 3
    points = db.range(8, npartitions=4).map(lambda i: Point(i % 2, 0))
    for method in ("tasks", "disk"):
        with dask.config.set({"bag.shuffle": method}):
            groups = points.groupby(lambda point: point, shuffle=method).compute()
        yield (
            f"bag.groupby by {method}",
            {k: len(v) for k, v in groups}
            == {
                Point(0, 0): 4,
                Point(1, 0): 4,
            },
        )


def frames() -> typing.Iterator[tuple[str, bool]]:
    ddf = dd.from_pandas(pd.DataFrame({"i": range(60)}), npartitions=3)
    colored = ddf.assign(c=ddf.i.map(color, meta=("c", object)))
    yield "series", (colored.c.compute() == Color.RED).sum() == 30
    shuffled = colored.shuffle("i")
    yield "shuffled", (shuffled.compute().c == Color.RED).sum() == 30
    counted = shuffled.map_partitions(
        lambda part: pd.DataFrame({"n": [sum(one is Color.RED for one in part.c)]}),
        meta=pd.DataFrame({"n": [0]}),
    )
    yield "after a shuffle", counted.n.sum().compute() == 30
    sizes = colored.groupby("c").i.count().compute()
    yield "groupby", sizes[Color.RED] == 30
    several = colored.groupby("c").i.sum(split_out=2).compute()
    yield "groupby by shuffle", len(several) == 2 and several[Color.RED] == 900
    kinds = pd.CategoricalDtype([Color.RED, Color.BLUE])
    ordered = colored.assign(c=colored.c.astype(kinds)).shuffle("i").compute()
    yield "categories", (ordered.c == Color.RED).sum() == 30
    kept = colored.persist()
    yield "persisted frame", (kept.c == Color.RED).sum().compute() == 30


def client() -> typing.Iterator[tuple[str, bool]]:
    with dask_exo.Client() as here:
        yield "future", here.submit(Point, 1, 1).result() == Point(1, 1)
        scattered = here.scatter(Color.RED)
        yield "scattered", here.submit(lambda one: one is Color.RED, scattered).result()
        variable = dask_exo.client.Variable("identity")
        variable.set(here.submit(color, 0))
        yield "variable", variable.get().result() is color(0)


def pipeline() -> typing.Iterator[tuple[str, bool]]:
    class Painter:
        def __call__(self, part: pd.DataFrame) -> pd.DataFrame:
            return part.assign(c=[color(i) for i in part.i])

    ddf = dd.from_pandas(pd.DataFrame({"i": range(60)}), npartitions=3)
    reds = (
        ddf.exo.pipeline()
        .map_partitions(Painter, num_cpus=1)
        .map_partitions(lambda part: part.assign(red=[one is Color.RED for one in part.c]))
        .compute()
    )
    yield "stages of a pipeline", reds.red.sum() == 30
    yield "result of a pipeline", (reds.c == Color.RED).sum() == 30


def main(engine: str) -> None:
    if engine == "threads":
        dask.config.set({"exo.engine": "local"})
        found = [*delayed_values(), *bags(), *frames()]
    elif engine == "pipeline":
        found = [*pipeline()]
    else:
        found = [*delayed_values(), *bags(), *frames(), *client()]
    print(json.dumps({name: bool(same) for name, same in found}))


if __name__ == "__main__":
    settings = {"exo.num-cpus": 2, "exo.object-store-memory": "200MB", "exo.progress": False}
    settings["dataframe.convert-string"] = False
    with dask.config.set({"scheduler": dask_exo.get, "exo.engine": "ray", **settings}):
        main(sys.argv[1])
