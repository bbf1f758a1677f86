"""Programs made at random: whatever is changed that they reach, no old result comes back.

``EXO_TEST_PROGRAMS=200 pytest tests/parity/test_random_programs.py`` makes as many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity.programs import Programs

pytestmark = pytest.mark.slow

PROGRAMS = int(os.environ.get("EXO_TEST_PROGRAMS", "20"))
MODULES = 4
PRIME = 1_000_003

KINDS = {
    "literal": "def {name}(x):\n    return {calls} + x * {number}\n",
    "constant": "C{name} = {number}\ndef {name}(x):\n    return {calls} + x * C{name}\n",
    "computed constant": "C{name} = sum([{number}, 1])\n"
    "def {name}(x):\n    return {calls} + x * C{name}\n",
    "default": "def {name}(x, c={number}):\n    return {calls} + x * c\n",
    "closure": "def make_{name}(c):\n    def inner(x):\n        return {calls} + x * c\n"
    "    return inner\n{name} = make_{name}({number})\n",
    "lambda": "{name} = lambda x: {calls} + x * {number}\n",
    "partial": "import functools\ndef two_{name}(c, x):\n    return {calls} + x * c\n"
    "{name} = functools.partial(two_{name}, {number})\n",
    "instance": "class K{name}:\n    def __init__(self, c):\n        self.c = c\n"
    "    def __call__(self, x):\n        return {calls} + x * self.c\n{name} = K{name}({number})\n",
    "class attribute": "class K{name}:\n    c = {number}\n    @classmethod\n"
    "    def go(cls, x):\n        return {calls} + x * cls.c\n{name} = K{name}.go\n",
    "subclass": "class B{name}:\n    def go(self, x):\n        return {calls} + x * {number}\n"
    "class K{name}(B{name}): pass\n{name} = K{name}().go\n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass K{name}:\n"
    "    c: int = {number}\ndef {name}(x):\n    return {calls} + x * K{name}().c\n",
    "enum": "import enum\nclass K{name}(enum.Enum):\n    A = {number}\n"
    "def {name}(x):\n    return {calls} + x * K{name}.A.value\n",
    "decorated": "import functools\ndef deco_{name}(f):\n    @functools.wraps(f)\n"
    "    def g(x):\n        return f(x) + x * {number}\n    return g\n"
    "@deco_{name}\ndef {name}(x):\n    return {calls}\n",
    "cached": "import functools\n@functools.lru_cache\ndef c_{name}():\n    return {number}\n"
    "def {name}(x):\n    return {calls} + x * c_{name}()\n",
    "comprehension": "def {name}(x):\n    return {calls} + sum(x * i for i in range({number}))\n",
    "registry": "R{name} = {{'f': lambda x: x * {number}}}\n"
    "def {name}(x):\n    return {calls} + R{name}['f'](x)\n",
    "vectorized": "import numpy as np\ng_{name} = np.vectorize(lambda x: x * {number})\n"
    "def {name}(x):\n    return {calls} + int(g_{name}(x % 1000))\n",
    "property": "class K{name}:\n    @property\n    def c(self):\n        return {number}\n"
    "def {name}(x):\n    return {calls} + x * K{name}().c\n",
    "file": "def {name}(x):\n    with open('{name}.txt') as file:\n"
    "        return {calls} + x * int(file.read())\n",
    "file by a constant": "from pathlib import Path\nP{name} = Path('data') / '{name}.txt'\n"
    "def {name}(x):\n    return {calls} + x * int(P{name}.read_text())\n",
    "generator": "def g_{name}(x):\n    yield x * {number}\n"
    "def {name}(x):\n    return {calls} + sum(g_{name}(x))\n",
    "named tuple": "from typing import NamedTuple\nclass K{name}(NamedTuple):\n"
    "    c: int = {number}\ndef {name}(x):\n    return {calls} + x * K{name}().c\n",
    "set": "S{name} = {{'a', 'b', {number}}}\n"
    "def {name}(x):\n    return {calls} + x * sum(i for i in S{name} if i not in ('a', 'b'))\n",
}
FILES = {"file": "{name}.txt", "file by a constant": "data/{name}.txt"}


class Program:
    """A program of random functions that call each other, each with a number of its own."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        count = rng.randint(4, 10)
        self.names = [f"n{i}" for i in range(count)]
        self.modules = sorted(rng.randrange(MODULES) for _ in self.names)
        self.kinds = [rng.choice(sorted(KINDS)) for _ in self.names]
        self.numbers = [rng.randint(2, 9) for _ in self.names]
        self.called: list[list[int]] = [[] for _ in self.names]
        for i in range(1, count):  # each is called by one before it: all can be reached
            self.called[rng.randrange(i)].append(i)
        self.ways = [rng.choice(["module", "from", "as", "inside", "list"]) for _ in self.names]

    def files(self, blank: int = 0) -> dict[str, str]:
        """Texts of its modules and of what they read, with some blank lines."""
        texts = {f"m{m}.py": "\n" * blank for m in range(MODULES)}
        for i in reversed(range(len(self.names))):
            name, kind, number = self.names[i], self.kinds[i], self.numbers[i]
            above, calls = self._calls(i)
            text = KINDS[kind].format(name=name, number=number, calls=calls)
            texts[f"m{self.modules[i]}.py"] += f"{above}{text}# {blank} lines\n"
            if kind in FILES:
                texts[FILES[kind].format(name=name)] = str(number)
        return texts

    def _calls(self, i: int) -> tuple[str, str]:
        """What a function needs above it, and how it calls others."""
        above, calls = "", ["1"]
        for j in self.called[i]:
            name, module, way = self.names[j], f"m{self.modules[j]}", self.ways[j]
            if self.modules[i] == self.modules[j]:
                calls.append(f"{name}(x)")
            elif way == "from":
                above += f"from {module} import {name}\n"
                calls.append(f"{name}(x)")
            elif way == "as":
                above += f"from {module} import {name} as a{name}\n"
                calls.append(f"a{name}(x)")
            elif way == "inside":
                above += f"def c{name}(x):\n    from {module} import {name}\n"
                above += f"    return {name}(x)\n"
                calls.append(f"c{name}(x)")
            elif way == "list":
                above += f"import {module}\nL{name} = [{module}.{name}]\n"
                calls.append(f"L{name}[0](x)")
            else:
                above += f"import {module}\n"
                calls.append(f"{module}.{name}(x)")
        return above, "(" + " + ".join(calls) + f") % {PRIME}"

    @property
    def main(self) -> str:
        """The main program."""
        module = f"m{self.modules[0]}"
        return (
            f"import {module}\n"
            f"def each(d):\n    return d.assign(v=[int({module}.n0(int(x))) for x in d.v])\n"
            f"def result():\n    return base.map_partitions(each, meta=base._meta)\n"
        )


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Programs]]:
    both = [Programs(3), Programs(4)]
    yield both
    for one in both:
        one.close()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_no_old_result_of_a_changed_program(seed: int, runs, tmp_path: Path) -> None:
    program, rng = Program(seed), random.Random(seed)
    folder, kept = tmp_path / "main", tmp_path / "kept"
    write(folder, program.files())
    first = runs[0].run(folder, program.main, kept=kept)
    write(folder, program.files(blank=rng.randint(0, 5)))
    again = runs[1].run(folder, program.main, kept=kept)
    assert again["rows"] == first["rows"]
    assert first["refused"] == again["refused"] == []
    assert again["found"] > 0
    changed = rng.randrange(len(program.names))
    program.numbers[changed] += rng.randint(1, 5)
    write(folder, program.files())
    second = runs[1].run(folder, program.main, kept=kept)
    fresh = runs[0].run(folder, program.main, kept=None)
    assert fresh["rows"] != first["rows"]
    assert second["rows"] == fresh["rows"]
