"""No old result, whatever a program reads that has changed since it was kept."""

from __future__ import annotations

import http.server
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import pytest

from dask_exo.dask_adapter import Task
from dask_exo.planning.fingerprint.tasks import fingerprints
from tests.parity.programs import Programs

pytestmark = pytest.mark.slow

Files = Mapping[str, Any]
"""What is in each file: text, bytes, or a function that makes it."""

TIMES = "def f(d):\n    return d.assign(v=d.v * 2)\n"
VALUE = "def g(x):\n    return x * 2\n"
CALL = "class A:\n    def __call__(self, d):\n        return d.assign(v=d.v * 2)\n"
HOLDER = "class A:\n    def __init__(self, f):\n        self.f = f\n"
HOLDER += "    def __call__(self, d):\n        return self.f(d)\n"
WRAPS = "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
WRAPS += "    def g(d):\n        return f(d.assign(v=d.v * 2))\n    return g\n"
OLD, NEW = "k,v\n1,10\n2,20\n", "k,v\n1,99\n2,20\n"
READ = "def read(path): return pd.read_csv(path)\n"
READ_ALL = "def read(path): return pd.concat(map(pd.read_csv, sorted(Path(path).glob('*.csv'))))\n"
MAP = "def result(): return base.map_partitions("
META = ", meta=base._meta)"


class Case(NamedTuple):
    """A program, and what is changed in it or in its files."""

    main: str
    files: Files = MappingProxyType({})
    change: Files = MappingProxyType({})
    """New files; under "main" what is replaced in the program, and by what."""
    refused: str = ""
    """What it says if nothing is kept at all."""
    env: Mapping[str, str] = MappingProxyType({})


def three(text: str) -> str:
    return text.replace("* 2", "* 3")


def tripled(main: str, files: Mapping[str, str]) -> Case:
    """A program with files, in which each 2 becomes a 3."""
    return Case(main, files, {name: three(text) for name, text in files.items() if "* 2" in text})


def helped(main: str, helper: str = TIMES, **others: str) -> Case:
    """A program that imports a module `helper`, which may import others."""
    files = {"helper.py": helper, **{f"{name}.py": text for name, text in others.items()}}
    return tripled(f"import helper\n{main}", files)


def edited(main: str, old: str = "* 2", new: str = "* 3") -> Case:
    return Case(main, change={"main": (old, new)})


def tables(main: str, *names: str) -> Case:
    """A program that reads tables, of which the first one changes."""
    return Case(main, dict.fromkeys(names, OLD), {names[0]: NEW})


def reading(paths: str, read: str = READ, folder: str = "") -> Case:
    """A program that reads two tables."""
    main = f"{read}def result(): return dd.from_map(read, {paths})\n"
    return tables(main, f"{folder}a.csv", f"{folder}b.csv")


def delayed(path: str) -> Case:
    """A program of delayed tasks that read two tables."""
    main = f"""{READ}
def result():
    parts = [dask.delayed(read, pure=True)({path}) for p in ('a.csv', 'b.csv')]
    return dd.from_delayed(parts, meta=base._meta)
"""
    return tables(main, "a.csv", "b.csv")


def zipped(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inzip.py", text)

    return write


def parquet(value: int) -> Callable[[Path], None]:
    return pd.DataFrame({"k": [1, 2], "v": [value, 20]}).to_parquet


def same_times(write: Callable[[Path], Any] | str) -> Callable[[Path], None]:
    """Write a file whose size and time of modification are those of the old one."""

    def again(path: Path) -> None:
        before = path.stat()
        path.write_text(write) if isinstance(write, str) else write(path)
        assert path.stat().st_size == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return again


def linked(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return link


LONG = OLD + "7,7\n" * 20_000
CODE = {
    "lambda": edited(MAP + "lambda d: d.assign(v=d.v * 2))"),
    "constant": edited("C = 2\n" + MAP + "lambda d: d.assign(v=d.v * C))", "C = 2", "C = 3"),
    "second function": edited(VALUE + MAP + "lambda d: d.assign(v=g(d.v)))"),
    "default": edited("def f(d, c=2): return d.assign(v=d.v * c)\n" + MAP + "f)", "c=2", "c=3"),
    "keyword default": edited(
        "def f(d, *, c=2): return d.assign(v=d.v * c)\n" + MAP + "f)", "c=2", "c=3"
    ),
    "closure": edited(
        "def make(c): return lambda d: d.assign(v=d.v * c)\n" + MAP + "make(2))", "e(2)", "e(3)"
    ),
    "argument": edited(MAP + "lambda d, c: d.assign(v=d.v * c), 2)", " 2)", " 3)"),
    "keyword": edited(MAP + "lambda d, c: d.assign(v=d.v * c), c=2)", "=2)", "=3)"),
    "dict of functions": edited(
        "F = {'a': lambda x: x * 2}\n" + MAP + "lambda d: d.assign(v=F['a'](d.v)))"
    ),
    "nested lambda": edited(MAP + "lambda d: d.assign(v=(lambda x: x * 2)(d.v)))"),
    "comprehension": edited(MAP + "lambda d: d.assign(v=[x * 2 for x in d.v]))"),
    "method of a class": edited(
        "class A:\n    def m(self, x): return x * 2\n" + MAP + "lambda d: d.assign(v=A().m(d.v)))"
    ),
    "attribute of a class": edited(
        "class A:\n    c = 2\n" + MAP + "lambda d: d.assign(v=d.v * A.c))", "c = 2", "c = 3"
    ),
    "static method": edited(
        "class A:\n    @staticmethod\n    def m(x): return x * 2\n"
        + MAP
        + "lambda d: d.assign(v=A.m(d.v)))"
    ),
    "class method": edited(
        "class A:\n    @classmethod\n    def m(cls, x): return x * 2\n"
        + MAP
        + "lambda d: d.assign(v=A.m(d.v)))"
    ),
    "property": edited(
        "class A:\n    @property\n    def c(self): return 1 * 2\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A().c))"
    ),
    "enum": edited(
        "import enum\nclass E(enum.Enum):\n    A = 2\n"
        + MAP
        + "lambda d: d.assign(v=d.v * E.A.value))",
        "A = 2",
        "A = 3",
    ),
    "dataclass": edited(
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    c: int = 2\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A().c))",
        "= 2",
        "= 3",
    ),
    "default factory": edited(
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n"
        "    c: int = dataclasses.field(default_factory=lambda: 1 * 2)\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A().c))"
    ),
    "named tuple": edited(
        "from typing import NamedTuple\nclass A(NamedTuple):\n    c: int = 2\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A().c))",
        "= 2",
        "= 3",
    ),
    "metaclass": edited(
        "class M(type):\n    def scale(cls, x): return x * 2\nclass A(metaclass=M): pass\n"
        + MAP
        + "lambda d: d.assign(v=A.scale(d.v)))"
    ),
    "instance with slots": edited(
        "class A:\n    __slots__ = ('c',)\n    def __init__(self, c): self.c = c\na = A(2)\n"
        + MAP
        + "lambda d: d.assign(v=d.v * a.c))",
        "A(2)",
        "A(3)",
    ),
    "set": edited(
        "S = {'a', 'b', 1}\n" + MAP + "lambda d: d.assign(v=d.v * len(S)))", "'b', 1", "'b', 1, 2"
    ),
    "regular expression": edited(
        "import re\nP = re.compile('x')\n" + MAP + "lambda d: d.assign(v=d.v * len(P.pattern)))",
        "'x'",
        "'xy'",
    ),
    "array": edited(
        "A = np.array([1, 2])\n" + MAP + "lambda d: d.assign(v=d.v * A[1]))", "1, 2", "1, 3"
    ),
    "array of objects": edited(
        "A = np.array([None, lambda x: x * 2], dtype=object)\n"
        + MAP
        + "lambda d: d.assign(v=A[1](d.v)))"
    ),
    "frame of functions": edited(
        "T = pd.DataFrame({'f': [lambda x: x * 2]})\n"
        + MAP
        + "lambda d: d.assign(v=T.f.iloc[0](d.v)))"
    ),
    "lookup table": tables(
        "T = pd.read_csv('a.csv').set_index('k').v\n"
        + MAP
        + "lambda d: d.assign(v=d.k.map(T).fillna(0)))",
        "a.csv",
    ),
    "cached function": edited(
        "@functools.lru_cache\ndef c(): return 1 * 2\n" + MAP + "lambda d: d.assign(v=d.v * c()))"
    ),
    "accessor of pandas": edited(
        "@pd.api.extensions.register_series_accessor('mine')\nclass A:\n"
        "    def __init__(self, s): self.s = s\n    def go(self): return self.s * 2\n"
        + MAP
        + "lambda d: d.assign(v=d.v.mine.go()))"
    ),
    "method given to pandas": edited(
        "def go(s): return s * 2\npd.Series.go_on = go\n"
        + MAP
        + "lambda d: d.assign(v=d.v.go_on()))"
    ),
    "recursion": edited(
        "def f(x, n): return x * 2 if n == 0 else g(x, n - 1)\ndef g(x, n): return f(x, n)\n"
        + MAP
        + "lambda d: d.assign(v=f(d.v, 1)))"
    ),
    "generator": edited(
        "def g(xs):\n    for x in xs: yield x * 2\n" + MAP + "lambda d: d.assign(v=list(g(d.v))))"
    ),
    "walrus and global": edited(
        "C = 1\ndef f(d):\n    global C\n    return d.assign(v=d.v * (C := 2))\n" + MAP + "f)",
        ":= 2",
        ":= 3",
    ),
    "method caller": edited(
        "import operator\n" + MAP + "operator.methodcaller('head', 1)" + META, "', 1", "', 2"
    ),
    "variable of the environment": Case(
        MAP + "lambda d: d.assign(v=d.v * int(os.environ['FACTOR'])))", env={"FACTOR": "2"}
    ),
    "variable by getenv": Case(
        "from os import getenv\n" + MAP + "lambda d: d.assign(v=d.v * int(getenv('FACTOR', 1))))",
        env={"FACTOR": "2"},
    ),
    "module by its name": tripled(
        "import helper\n" + MAP + "lambda d: sys.modules['helper'].f(d))", {"helper.py": TIMES}
    )._replace(refused="sys.modules"),
    "variable by a name of its own": Case(
        "NAME = 'FACTOR'\n" + MAP + "lambda d: d.assign(v=d.v * int(os.environ[NAME])))",
        env={"FACTOR": "2"},
    ),
    "variable through a helper": Case(
        "def env(n): return int(os.environ.get(n))\n"
        + MAP
        + "lambda d: d.assign(v=d.v * env('FACTOR')))",
        env={"FACTOR": "2"},
    ),
    "variable as an argument": Case(
        "def f(d, n): return d.assign(v=d.v * int(os.environ[n]))\n" + MAP + "f, 'FACTOR'" + META,
        env={"FACTOR": "2"},
    ),
    "variable put together": Case(
        "def f(d, n): return d.assign(v=d.v * int(os.environ[f'FAC{n}']))\n"
        + MAP
        + "f, 'TOR'"
        + META,
        env={"FACTOR": "2"},
    ),
    "environment imported in the function": Case(
        "def f(d):\n    from os import getenv\n"
        "    return d.assign(v=d.v * int(getenv('FACTOR', 1)))\n" + MAP + "f)",
        env={"FACTOR": "2"},
    ),
    "order of a dict": edited(
        "OPS = {'a': lambda x: x * 2, 'b': lambda x: x + 1}\n"
        "def f(d):\n    v = d.v\n    for g in OPS.values(): v = g(v)\n"
        "    return d.assign(v=v)\n" + MAP + "f)",
        "'a': lambda x: x * 2, 'b': lambda x: x + 1",
        "'b': lambda x: x + 1, 'a': lambda x: x * 2",
    ),
    "metadata of a field": edited(
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n"
        "    c: int = dataclasses.field(default=1, metadata={'m': 2})\n"
        + MAP
        + "lambda d: d.assign(v=d.v * dataclasses.fields(A)[0].metadata['m']))",
        "'m': 2",
        "'m': 3",
    ),
    "annotation": edited(
        "def one(d, c: 2 = 1): return d\n"
        + MAP
        + "lambda d: d.assign(v=d.v * one.__annotations__['c']))",
        "c: 2",
        "c: 3",
    ),
    "class made by a function": edited(
        "import dataclasses\nA = dataclasses.make_dataclass('A', [('c', int, 2)])\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A().c))",
        "int, 2",
        "int, 3",
    ),
    "keyword instead of an argument": edited(
        "def f(d, *args, **kw): return d.assign(v=d.v * (len(args) * 2 + len(kw) * 3))\n"
        + MAP
        + "f, {'c': 2}"
        + META,
        "f, {'c': 2}",
        "f, c=2",
    ),
    "name of a function": edited(
        "def one(x): return x\nALL = [one]\n"
        + MAP
        + "lambda d: d.assign(v=d.v * len(ALL[0].__name__)))",
        "one",
        "three",
    ),
    "subclasses": Case(
        "class A: c = 2\nclass B(A): pass\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A.__subclasses__()[0].c))",
        change={"main": ("c = 2", "c = 3")},
        refused="__subclasses__",
    ),
    "class of a text": Case(
        "space = {}\nexec(open('conf.py').read(), space)\nA = space['A']\n"
        + MAP
        + "lambda d: d.assign(v=d.v * A.c))",
        {"conf.py": "class A:\n    c = 2\n"},
        {"conf.py": "class A:\n    c = 3\n"},
    ),
    "eval": Case(
        "T = 'x * 2'\n" + MAP + "lambda d: d.assign(v=eval(T, {'x': d.v})))",
        change={"main": ("* 2", "* 3")},
        refused="eval",
    ),
    "import by a name": tripled(
        "import importlib\n" + MAP + "lambda d: importlib.import_module('helper').f(d))",
        {"helper.py": TIMES},
    )._replace(refused="import_module"),
}
MODULES = {
    "its function": helped(MAP + "helper.f)"),
    "query with a variable": helped(
        MAP + "helper.f)", "C = 4.5 * 2\ndef f(d):\n    return d.query('v > @C')\n"
    ),
    "called by a lambda": helped(MAP + "lambda d: helper.f(d))"),
    "from-imported": helped("from helper import f\n" + MAP + "lambda d: f(d))"),
    "imported in the function": helped(
        "def call(d):\n    from helper import f\n    return f(d)\n" + MAP + "call)"
    ),
    "module imported in the function": helped(
        "def call(d):\n    import helper as h\n    return h.f(d)\n" + MAP + "call)"
    ),
    "module imported by its way": tripled(
        "def f(d):\n    import pkg.impl as m\n    return m.f(d)\n" + MAP + "f)",
        {"pkg/__init__.py": "", "pkg/impl.py": TIMES},
    ),
    "parent of an imported module": tripled(
        "def f(d):\n    import pkg.impl\n    return pkg.g(d)\n" + MAP + "f)",
        {"pkg/__init__.py": TIMES.replace("def f", "def g"), "pkg/impl.py": ""},
    ),
    "lazy attribute of another module": helped(
        "def f(d):\n    import helper\n    return helper.lazy(d)\n" + MAP + "f)",
        "def __getattr__(name):\n    import other\n    return other.f\n",
        other=TIMES,
    ),
    "given to a package": helped(
        MAP + "helper.f)",
        "import json\njson.mine = lambda x: x * 2\ndef f(d): return d.assign(v=json.mine(d.v))\n",
    ),
    "method by its name": helped(
        "def result(): return base.map_partitions(lambda d: d.assign(v=d.v.agg('mine')))\n",
        "import pandas as pd\ndef mine(s): return s * 2\npd.Series.mine = mine\n",
    ),
    "query by a constant": helped(
        MAP + "helper.f)", "C = 4.5 * 2\nQ = 'v > @C'\ndef f(d):\n    return d.query(Q)\n"
    ),
    "config whose attributes are its items": helped(
        MAP + "helper.f)",
        "class Config(dict):\n    __getattr__ = dict.__getitem__\nc = Config(by=1 * 2)\n"
        "def f(d): return d.assign(v=d.v * c.by)\n",
    ),
    "optional package, large number, standard error": helped(
        MAP + "helper.f)",
        "import sys\nB = 1 << 20000\nclass A:\n    def __getattr__(self, name):\n"
        "        raise RuntimeError(name)\na = A()\ndef f(d):\n"
        "    try:\n        import there_is_no_such_package\n    except ImportError: pass\n"
        "    print('x', file=sys.stderr)\n    a, B\n    return d.assign(v=d.v * 2)\n",
    ),
    "pools, locks and references": helped(
        MAP + "helper.f)",
        "import threading, weakref\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "class A: pass\na = A()\n"
        "T = [threading.local(), threading.Lock(), ThreadPoolExecutor(1), weakref.ref(a)]\n"
        "def f(d): return d.assign(v=d.v * 2) if T else None\n",
    ),
    "constant": helped(MAP + "lambda d: d.assign(v=d.v * helper.C))", "C = 1 * 2\n"),
    "constant made elsewhere": helped(
        MAP + "lambda d: d.assign(v=d.v * helper.C))", "from other import C\n", other="C = 1 * 2\n"
    ),
    "module in a variable": helped("m = helper\n" + MAP + "lambda d: m.f(d))"),
    "module as an argument": helped(
        "def call(d, m): return m.f(d)\n" + MAP + "lambda d: call(d, helper))"
    ),
    "module by getattr": helped(MAP + "lambda d: getattr(helper, 'f')(d))"),
    "helper of a helper": helped(
        MAP + "helper.f)", "import other\ndef f(d): return other.f(d)\n", other=TIMES
    ),
    "three modules deep": helped(
        MAP + "lambda d: helper.f(d))",
        "import other\ndef f(d): return other.f(d)\n",
        other="from third import f as f3\ndef f(d): return f3(d)\n",
        third=TIMES,
    ),
    "module of a package": Case(
        "import pkg\n" + MAP + "pkg.f)",
        {
            "pkg/__init__.py": "from pkg.impl import f\n",
            "pkg/impl.py": "from pkg.consts import C\ndef f(d): return d.assign(v=d.v * C)\n",
            "pkg/consts.py": "C = 2\n",
        },
        {"pkg/consts.py": "C = 3\n"},
    ),
    "relative import in a function": tripled(
        "import pkg\n" + MAP + "pkg.f)",
        {
            "pkg/__init__.py": "def f(d):\n    from .impl import g\n    return g(d)\n",
            "pkg/impl.py": TIMES.replace("def f", "def g"),
        },
    ),
    "submodule by its way": tripled(
        "import pkg.sub.impl\n" + MAP + "lambda d: pkg.sub.impl.f(d))",
        {"pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/sub/impl.py": TIMES},
    ),
    "decorator elsewhere": helped(
        MAP + "helper.f)",
        "from deco import deco\n@deco\ndef f(d): return d\n",
        deco=WRAPS,
    ),
    "decorated function": helped(
        "from deco import deco\n" + MAP + "helper.f)",
        "from deco import deco\n@deco\ndef f(d): return d.assign(v=d.v * 2)\n",
        deco=WRAPS,
    ),
    "toolz.compose": helped("import toolz\n" + MAP + "toolz.compose(helper.f, helper.f)" + META),
    "toolz.compose_left": helped("import toolz\n" + MAP + "toolz.compose_left(helper.f)" + META),
    "toolz.pipe": helped("import toolz\n" + MAP + "lambda d: toolz.pipe(d, helper.f, helper.f))"),
    "toolz.curry": helped("import toolz\n" + MAP + "toolz.curry(helper.f)" + META),
    "toolz.juxt": helped("import toolz\n" + MAP + "lambda d: toolz.juxt(helper.f)(d)[0])"),
    "partial": helped(MAP + "functools.partial(helper.f))"),
    "partial in a closure": helped("p = functools.partial(helper.f)\n" + MAP + "lambda d: p(d))"),
    "partial over an object": helped(
        MAP + "functools.partial(lambda o, d: o(d), helper.OBJECT)" + META,
        "import other\nOBJECT = other.A()\n",
        other=CALL,
    ),
    "np.vectorize": helped(
        MAP + "lambda d, g: d.assign(v=g(d.v)), g=np.vectorize(helper.g)" + META, VALUE
    ),
    "np.vectorize in a closure": helped(
        "g = np.vectorize(helper.g)\n" + MAP + "lambda d: d.assign(v=g(d.v)))", VALUE
    ),
    "np.frompyfunc": helped(
        MAP + "lambda d: d.assign(v=helper.g(d.v).astype('i8')))",
        "import numpy as np\ng = np.frompyfunc(lambda x: x * 2, 1, 1)\n",
    )._replace(refused="numpy does not show"),
    "single dispatch": helped(
        MAP + "lambda d: d.assign(v=helper.g(d.v)))",
        "import functools, pandas as pd\n@functools.singledispatch\ndef g(x): return x\n"
        "@g.register(pd.Series)\ndef _(x): return x * 2\n",
    ),
    "function as an argument": helped(MAP + "lambda d, fn: fn(d), fn=helper.f" + META),
    "object that holds a function": helped(HOLDER + MAP + "A(helper.f)" + META),
    "object of a helper's class": helped(MAP + "helper.A()" + META, CALL),
    "object of one helper with a function of another": helped(
        "import other\n" + MAP + "helper.A(other.f)" + META, HOLDER, other=TIMES
    ),
    "base of a class": helped(
        MAP + "helper.B()" + META, "import other\nclass B(other.A): pass\n", other=CALL
    ),
    "base of a class, bound method": helped(
        MAP + "helper.B().__call__" + META, "import other\nclass B(other.A): pass\n", other=CALL
    ),
    "mixin": helped(
        MAP + "helper.B()" + META,
        "import other\nclass C: pass\nclass B(C, other.A): pass\n",
        other=CALL,
    ),
    "super": helped(
        MAP + "lambda d: helper.B()(d))",
        "import other\nclass B(other.A):\n    def __call__(self, d): return super().__call__(d)\n",
        other=CALL,
    ),
    "list of functions": helped(
        MAP + "helper.ALL[0])", "import other\nALL = [other.f]\n", other=TIMES
    ),
    "registry": helped(
        MAP + "lambda d: helper.ALL['f'](d))",
        "import other\nALL = {'f': other.f}\n",
        other=TIMES,
    ),
    "plugin that registers itself": helped(
        "import other\n" + MAP + "lambda d: helper.ALL['f'](d))",
        "ALL = {}\n",
        other="import helper\n@lambda f: helper.ALL.setdefault('f', f)\n" + TIMES,
    ),
    "lazy attribute": helped(
        MAP + "lambda d: helper.lazy(d))",
        TIMES + "def __getattr__(name):\n    if name == 'lazy': return f\n"
        "    raise AttributeError(name)\n",
    ),
    "aggregation": helped(
        "agg = dd.Aggregation('a', helper.chunk, helper.final)\n"
        "def result():\n"
        "    g = base.assign(g=base.k % 2).groupby('k')\n"
        "    return g.agg({'v': agg}, split_out=2, shuffle_method='tasks').reset_index()\n",
        "def chunk(s): return s.sum() * 2\ndef final(s): return s.sum()\n",
    ),
    "groupby.apply": helped(
        "def result():\n"
        "    meta = pd.DataFrame({'v': [0]}, index=pd.Index([0], name='k'))\n"
        "    groups = base.groupby('k').apply(helper.f, meta=meta)\n"
        "    return groups.reset_index()[['k', 'v']]\n"
    ),
    "element by element": helped(
        "def result(): return base.assign(v=base.v.map(helper.g, meta=('v', 'int64')))\n", VALUE
    ),
    "delayed": helped(
        "def result():\n"
        "    parts = [dask.delayed(helper.make, pure=True)(i) for i in range(2)]\n"
        "    return dd.from_delayed(parts, meta=base._meta)\n",
        "import pandas as pd\n"
        "def make(i): return pd.DataFrame({'k': [i, i + 1], 'v': [i * 2, 5 * 2]})\n",
    ),
    "bag": helped(
        "def result():\n"
        "    bag = db.from_sequence(range(4), npartitions=2).map(helper.row)\n"
        "    return bag.to_dataframe(meta=base._meta)\n",
        "def row(i): return {'k': i, 'v': i * 2}\n",
    ),
    "archive": Case(
        "sys.path.insert(0, os.getcwd() + '/lib.zip')\nimport inzip\n" + MAP + "inzip.f)",
        {"lib.zip": zipped(TIMES)},
        {"lib.zip": zipped(three(TIMES))},
    ),
    "made by a program": tripled(
        "import types\nm = types.ModuleType('dyn')\nexec(open('code.txt').read(), m.__dict__)\n"
        "m.f.__module__ = 'dyn'\nsys.modules['dyn'] = m\n" + MAP + "m.f)",
        {"code.txt": TIMES},
    ),
    "loaded from a file": tripled(
        "import importlib.util as u\ns = u.spec_from_file_location('job', 'job.txt.py')\n"
        "m = u.module_from_spec(s)\nsys.modules['job'] = m\ns.loader.exec_module(m)\n"
        + MAP
        + "m.f)",
        {"job.txt.py": TIMES},
    ),
    "not installed package": tripled(
        "import mylib\n" + MAP + "lambda d: mylib.f(d))", {"mylib/__init__.py": TIMES}
    ),
    "pickled by value": helped(
        "import cloudpickle\ncloudpickle.register_pickle_by_value(helper)\n"
        + MAP
        + "lambda d: helper.f(d))"
    ),
    "method that calls a helper": helped(
        "class J:\n    def run(self, d): return helper.f(d)\n" + MAP + "J().run" + META
    ),
    "options": helped(MAP + "__import__('dask_exo').options(num_cpus=1)(helper.f))"),
}
DATA = {
    "str": reading("['a.csv', 'b.csv']"),
    "Path": reading("[Path('a.csv'), Path('b.csv')]"),
    "absolute": reading("[os.path.abspath(p) for p in ('a.csv', 'b.csv')]"),
    "bytes": reading("[b'a.csv', b'b.csv']", "def read(p): return pd.read_csv(p.decode())\n"),
    "home": reading("['~/a.csv', '~/b.csv']", "os.environ['HOME'] = os.getcwd()\n" + READ),
    "variable in a path": reading(
        "['$HERE/a.csv', '$HERE/b.csv']",
        "os.environ['HERE'] = os.getcwd()\n"
        "def read(p): return pd.read_csv(os.path.expandvars(p))\n",
    ),
    "file URL": reading("['file://' + os.path.abspath(p) for p in ('a.csv', 'b.csv')]"),
    "directory": tables(
        READ_ALL + "def result(): return dd.from_map(read, ['d1', 'd2'])", "d1/a.csv", "d2/b.csv"
    ),
    "directory with a new file": Case(
        READ_ALL + "def result(): return dd.from_map(read, [Path('d1'), Path('d2')])",
        {"d1/a.csv": OLD, "d2/b.csv": OLD},
        {"d1/c.csv": NEW},
    ),
    "directory with other content of the same size and time": Case(
        READ_ALL + "def result(): return dd.from_map(read, ['d1', 'd2'])",
        {"d1/a.csv": LONG, "d2/b.csv": OLD},
        {"d1/a.csv": same_times(LONG.replace("20\n", "99\n"))},
    ),
    "pattern": tables(
        "import glob\n"
        "def read(p): return pd.concat(map(pd.read_csv, sorted(glob.glob(p))))\n"
        "def result(): return dd.from_map(read, ['d1/*.csv', 'd2/*.csv'])",
        "d1/a.csv",
        "d2/b.csv",
    ),
    "name, with a directory in the function": reading(
        "['a.csv', 'b.csv']",
        "def read(n): return pd.read_csv('d1/' + n)\n",
        folder="d1/",
    ),
    "name, with a directory as an argument": tables(
        "def read(n, root): return pd.read_csv(root + '/' + n)\n"
        "def result(): return dd.from_map(read, ['a.csv', 'b.csv'], root='d1')",
        "d1/a.csv",
        "d1/b.csv",
    ),
    "file named in the function": tables(
        MAP + "lambda d: d.assign(v=d.v * pd.read_csv('a.csv').v[0]))", "a.csv"
    ),
    "file named in a helper": Case(
        "import helper\n" + MAP + "lambda d: d.assign(v=d.v * helper.factor()))",
        {
            "helper.py": "import pandas as pd\nPATH = 'a.csv'\n"
            "def factor(): return pd.read_csv(PATH).v[0]\n",
            "a.csv": OLD,
        },
        {"a.csv": NEW},
    ),
    "dataclass": reading(
        "[P('a.csv'), P('b.csv')]",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    path: str\n"
        "def read(p): return pd.read_csv(p.path)\n",
    ),
    "dict": reading(
        "[{'path': 'a.csv'}, {'path': 'b.csv'}]", "def read(p): return pd.read_csv(p['path'])\n"
    ),
    "nested": reading(
        "[('x', [{'p': Path('a.csv')}]), ('y', [{'p': Path('b.csv')}])]",
        "def read(p): return pd.read_csv(p[1][0]['p'])\n",
    ),
    "delayed str": delayed("p"),
    "delayed Path": delayed("Path(p)"),
    "same size and time": reading("['a.csv', 'b.csv']")._replace(change={"a.csv": same_times(NEW)}),
    "same size and time, large": reading("['a.csv', 'b.csv']")._replace(
        files={"a.csv": LONG, "b.csv": OLD},
        change={"a.csv": same_times(LONG.replace("20\n", "99\n"))},
    ),
    "link to another file": reading("['c.csv', 'b.csv']")._replace(
        files={"a.csv": OLD, "b.csv": OLD, "n.csv": NEW, "c.csv": linked("a.csv")},
        change={"c.csv": linked("n.csv")},
    ),
    "read_csv": tables("def result(): return dd.read_csv('*.csv')", "a.csv", "b.csv"),
    "read_csv same size and time": Case(
        "def result(): return dd.read_csv('*.csv')",
        {"a.csv": LONG, "b.csv": OLD},
        {"a.csv": same_times(LONG[:-4] + "8,8\n")},
    ),
    "read_parquet": Case(
        "def result(): return dd.read_parquet('pq')",
        {"pq/a.parquet": parquet(10), "pq/b.parquet": parquet(10)},
        {"pq/a.parquet": parquet(99)},
    ),
    "read_parquet same size and time": Case(
        "def result(): return dd.read_parquet('pq')",
        {"pq/a.parquet": parquet(10), "pq/b.parquet": parquet(10)},
        {"pq/a.parquet": same_times(parquet(11))},
    ),
    "read_parquet by Arrow": Case(
        "def result(): return dd.read_parquet(os.path.abspath('pq'), filesystem='arrow')",
        {"pq/a.parquet": parquet(10), "pq/b.parquet": parquet(10)},
        {"pq/a.parquet": same_times(parquet(11))},
    ),
    "read_json": Case(
        "def result(): return dd.read_json('*.json', lines=True)",
        {"a.json": '{"k": 1, "v": 10}\n', "b.json": '{"k": 2, "v": 10}\n'},
        {"a.json": '{"k": 1, "v": 99}\n'},
        refused="is not pure",
    ),
    "bag of text": Case(
        "def result(): return db.read_text('*.json').map(json.loads).to_dataframe()",
        {"a.json": '{"k": 1, "v": 10}\n', "b.json": '{"k": 2, "v": 10}\n'},
        {"a.json": '{"k": 1, "v": 99}\n'},
    ),
    "name put together": tables(
        "def read(i): return pd.read_csv(f'd1/part-{i}.csv')\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "d1/part-1.csv",
        "d1/part-0.csv",
    ),
    "name put together, beside the program": tables(
        "def read(i): return pd.read_csv('part-' + str(i) + '.csv')\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "part-1.csv",
        "part-0.csv",
    ),
    "name that is a number": tables(
        "def read(i): return pd.read_csv(f'{i}.csv')\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "1.csv",
        "0.csv",
    ),
    "beginning of a path": tables(
        "ROOT = 'd1/part-'\ndef read(i): return pd.read_csv(ROOT + str(i))\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "d1/part-1",
        "d1/part-0",
    ),
    "directories put together": tables(
        "def read(y): return pd.read_csv(f'd1/year={y}/x.csv')\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "d1/year=1/x.csv",
        "d1/year=0/x.csv",
    ),
    "directory that is a number": tables(
        "def read(y): return pd.read_csv(f'{y}/x.csv')\n"
        "def result(): return dd.from_map(read, [0, 1])",
        "1/x.csv",
        "0/x.csv",
    ),
    "end of a name by a constant": tables(
        "END = '.csv'\ndef read(n): return pd.read_csv(n + END)\n"
        "def result(): return dd.from_map(read, ['a', 'b'])",
        "a.csv",
        "b.csv",
    ),
    "file with another end": Case(
        "def read(p): return pd.read_csv(Path(p).with_suffix('.txt'))\n"
        "def result(): return dd.from_map(read, ['d1/a.csv', 'd1/b.csv'])",
        {"d1/a.csv": "", "d1/b.csv": "", "d1/a.txt": OLD, "d1/b.txt": OLD},
        {"d1/a.txt": NEW},
    ),
    "file beside another": Case(
        "def read(p): return pd.read_csv(Path(p).parent / 'table.txt')\n"
        "def result(): return dd.from_map(read, ['d1/a.csv', 'd1/b.csv'])",
        {"d1/a.csv": "", "d1/b.csv": "", "d1/table.txt": OLD},
        {"d1/table.txt": NEW},
    ),
    "paths in a longer text": tables(
        "def read(t): return pd.concat(map(pd.read_csv, t.split(',')))\n"
        "def result(): return dd.from_map(read, ['d1/a.csv,d1/b.csv', 'd1/b.csv,d1/b.csv'])",
        "d1/a.csv",
        "d1/b.csv",
    ),
    "link to a directory": Case(
        READ_ALL.replace("*.csv", "*/*.csv")
        + "def result(): return dd.from_map(read, ['d1', 'd1'])",
        {"other/a.csv": OLD, "d1/b/b.csv": OLD, "d1/link": linked("../other")},
        {"other/a.csv": NEW},
    ),
    "template of a format": tables(
        "def read(i, t): return pd.read_csv(t.format(i=i))\n"
        "def result(): return dd.from_map(read, [0, 1], t='d1/{i!s}.csv')",
        "d1/1.csv",
        "d1/0.csv",
    ),
    "template": tables(
        "def read(i, template): return pd.read_csv(template.format(i))\n"
        "def result(): return dd.from_map(read, [0, 1], template='part-{}.csv')",
        "part-1.csv",
        "part-0.csv",
    ),
    "template of C": tables(
        "def read(i, template): return pd.read_csv(template % i)\n"
        "def result(): return dd.from_map(read, [0, 1], template='d1/part-%02d.csv')",
        "d1/part-01.csv",
        "d1/part-00.csv",
    ),
    "beside the module": Case(
        "import pkg\n" + MAP + "lambda d: d.assign(v=d.v * pkg.factor()))",
        {
            "pkg/__init__.py": "import pandas as pd\nfrom pathlib import Path\n"
            "def factor(): return pd.read_csv(Path(__file__).parent / 'table.csv').v[0]\n",
            "pkg/table.csv": OLD,
        },
        {"pkg/table.csv": NEW},
    ),
    "paths in a frame": tables(
        "paths = pd.DataFrame({'k': [1, 2], 'p': ['d1/a.csv', 'd1/b.csv']})\n"
        "def read(d): return d.assign(v=[pd.read_csv(p).v[0] for p in d.p])[['k', 'v']]\n"
        "def result():\n"
        "    ddf = dd.from_pandas(paths, npartitions=2)\n"
        "    return ddf.map_partitions(read, meta=base._meta)\n",
        "d1/a.csv",
        "d1/b.csv",
    ),
    "database": Case(
        "import sqlite3\n"
        "def read(url): return pd.read_sql('select * from t', sqlite3.connect(url[10:]))\n"
        "def result(): return dd.from_map(read, ['sqlite:///t.db'])\n",
        {"t.db": lambda path: rows_of_a_table(path, 10)},
        {"t.db": lambda path: rows_of_a_table(path, 99)},
        refused="fsspec does not know 'sqlite'",
    ),
}
UNCHANGED = {
    "lines moved": ("def result", "\n\n# moved\n\ndef result"),
    "comment": ("base.map", "base.map"),
    "other function": ("def result", "def unrelated(x):\n    return 17\n\ndef result"),
    "other name of the file": ("def result", "X = 'a.csv'\ndef result"),
}


def rows_of_a_table(path: Path, value: int) -> None:
    import sqlite3

    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as table:
        pd.DataFrame({"k": [1], "v": [value]}).to_sql("t", table, index=False)
    table.close()


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Programs]]:
    """Two processes with other hashes of strings."""
    both = [Programs(1), Programs(2)]
    yield both
    for one in both:
        one.close()


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content(path) if callable(content) else path.write_text(content)


def check(runs: list[Programs], folder: Path, case: Case) -> None:
    folder.mkdir(exist_ok=True)
    write(folder, case.files)
    kept = folder.parent / f"{folder.name}-kept"
    first = runs[0].run(folder, case.main, kept=kept, **case.env)
    again = runs[1].run(folder, case.main, kept=kept, **case.env)
    assert again["rows"] == first["rows"]
    if case.refused:
        assert case.refused in " ".join(first["refused"])
        assert again["found"] == 0
    else:
        assert again["found"] > 0
        assert again["refused"] == []
    write(folder, {name: new for name, new in case.change.items() if name != "main"})
    main = case.main.replace(*case.change.get("main", ("", "")))
    env = {name: value.replace("2", "3") for name, value in case.env.items()}
    second = runs[1].run(folder, main, kept=kept, **env)
    fresh = runs[0].run(folder, main, kept=None, **env)
    assert fresh["rows"] != first["rows"]
    assert second["rows"] == fresh["rows"]


@pytest.mark.parametrize("name", CODE)
def test_a_change_of_the_program(name: str, runs, tmp_path) -> None:
    check(runs, tmp_path / "main", CODE[name])


@pytest.mark.parametrize("name", MODULES)
def test_a_change_of_a_module(name: str, runs, tmp_path) -> None:
    check(runs, tmp_path / "main", MODULES[name])


@pytest.mark.parametrize("name", DATA)
def test_a_change_of_data(name: str, runs, tmp_path) -> None:
    check(runs, tmp_path / "main", DATA[name])


@pytest.mark.parametrize("change", UNCHANGED)
def test_no_change_of_what_is_computed(change: str, runs, tmp_path) -> None:
    main = "def f(d):\n    return d.assign(v=d.v * 2)\n" + MAP + "lambda d: f(d))"
    kept = tmp_path / "kept"
    first = runs[0].run(tmp_path, main, kept=kept)
    second = runs[1].run(tmp_path, main.replace(*UNCHANGED[change]), kept=kept)
    assert second["rows"] == first["rows"]
    assert second["found"] > 0


GRAPHS = """
import dask.array as da
import dask_exo
from dask_exo.planning.fingerprint.tasks import fingerprints
from dask_exo.planning.normalize import normalize
rows = pd.DataFrame({"k": np.arange(99) % 7, "v": np.arange(99.0)})
rows["t"] = pd.date_range("2020", periods=99)
rows["s"] = [f"x{i % 13}" for i in range(99)]
rows["c"] = rows.s.astype("category")
d = dd.from_pandas(rows, npartitions=5)
b = db.from_sequence(range(100), npartitions=5)
a = da.ones((40, 40), chunks=10)
graphs = [
    d.shuffle("k"), d.set_index("v"), d.sort_values("v"), d.exo.sort_values(["s", "v"]),
    d.merge(d[["k", "t"]], on="k"), d.exo.merge(d[["k", "t"]], on="k"),
    d.groupby("k").agg({"v": ["sum", "mean", "std"]}, split_out=2),
    d.groupby("k").v.median(split_out=2),
    d.groupby("k").v.apply(lambda g: g.max(), meta=("v", "f8")), d.describe(), d.s.value_counts(),
    d.exo.groupby("k").agg({"v": ["nunique", "median"]}),
    d.drop_duplicates(subset=["k"], split_out=2),
    d.v.quantile([0.1, 0.9]), d.v.rolling(3).mean(), d.v.cumsum(), d.t.dt.year, d.c.cat.codes,
    d.pivot_table(index="k", columns="c", values="v"), d[d.k.isin([1, 2])], dd.concat([d, d]),
    d.k.map({1: 2}, meta=("k", "f8")), d.sample(frac=0.5, random_state=1), d.query("k > 3"),
    d.exo.random_shuffle(seed=1), d[["k", "v"]].corr(), d.v.reduction(np.sum), d.nlargest(5, "v"),
    (a + 1).T.dot(a).sum(0), a.rechunk((5, 40)), a.map_blocks(lambda x: x * 2), a.std(),
    a.map_overlap(lambda x: x, depth=1), b.map(lambda i: i * 2).frequencies(),
    b.groupby(lambda i: i % 3, shuffle="tasks"), b.foldby(lambda i: i % 2, lambda x, y: x + y, 0),
]
def of(graph):
    frame = hasattr(graph, "expr")
    graph = graph.optimize() if frame else graph
    given = graph.expr if frame else dict(graph.__dask_graph__())
    nodes, names, _ = normalize(given, graph.__dask_keys__())
    found = fingerprints(nodes, list(names.values()))
    return " ".join(str(found[name]) for name in names.values())
def result():
    found = [f"{i} {of(one)}" for i, one in enumerate(graphs)]
    return dd.from_pandas(pd.DataFrame({"k": 1, "v": found}), npartitions=2)
"""


def test_fingerprints_are_those_of_the_next_program(runs, tmp_path) -> None:
    one, other = (run.run(tmp_path, GRAPHS, kept=None)["rows"] for run in runs)
    assert len(one) == 36
    assert [row for row in one if "Unknown" in row] == []
    assert one == other


asked: list[str] = []
"""Pages that somebody has asked for."""


@contextmanager
def served(folder: Path, *headers: str) -> Iterator[str]:
    """A server of the files in a folder, with a tag or a time for each, or with neither."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_header(self, keyword: str, value: str) -> None:
            if keyword != "Last-Modified" or keyword in headers:
                super().send_header(keyword, value)

        def end_headers(self) -> None:
            if "ETag" in headers:
                content = Path(self.translate_path(self.path)).read_bytes()
                super().send_header("ETag", f'"{hash(content)}"')
            super().end_headers()

        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    handler = partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


PAGES = {
    "a column": "d = dd.from_pandas(pd.DataFrame({'k': [1, 2], 'v': [URL, URL]}), npartitions=2)",
    "a list": "rows = db.from_sequence([URL, URL]).map(lambda u: {'k': 1, 'v': u})\n"
    "d = rows.to_dataframe(meta={'k': 'i8', 'v': object})",
    "a text": "d = base.map_partitions(lambda d, t: d, 'see ' + URL)",
    "code": "d = base.map_partitions(lambda d: d if URL else d)",
}


@pytest.mark.parametrize("where", PAGES)
def test_nobody_is_asked_for_a_page_that_is_data(where: str, runs, tmp_path) -> None:
    (tmp_path / "main").mkdir()
    with served(tmp_path, "ETag") as url:
        asked.clear()
        main = PAGES[where].replace("URL", f"'{url}/a.csv'")
        runs[0].run(tmp_path / "main", f"{main}\ndef result(): return d", kept=tmp_path / "kept")
    assert asked == []


@pytest.mark.parametrize("how", ["ETag", "Last-Modified", "neither"])
def test_a_change_of_a_page(how: str, runs, tmp_path) -> None:
    data = tmp_path / "data"
    write(data, {"a.csv": OLD, "b.csv": OLD})
    for name in ("a.csv", "b.csv"):
        os.utime(data / name, (10**9, 10**9))
    with served(data, how) as url:
        case = reading(f"['{url}/a.csv', '{url}/b.csv']")

        def changed(path: Path) -> None:
            (data / "a.csv").write_text(NEW)
            os.utime(data / "a.csv", (10**9 + 5, 10**9 + 5))

        refused = "comes with no etag" if how == "neither" else ""
        case = case._replace(files={}, change={"ignored": changed}, refused=refused)
        (tmp_path / "main").mkdir()
        check(runs, tmp_path / "main", case)


def both(*paths: str) -> list[str]:
    return [Path(path).read_text(encoding="utf-8") for path in paths]


class Both:
    """The same, as an object that knows the paths."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def __call__(self) -> list[str]:
        return both(*self.paths)


def test_an_exchange_of_two_files_is_a_change(tmp_path) -> None:
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    tasks = {"args": Task("args", both, *paths), "object": Task("object", Both(*paths))}
    found = []
    for texts in (("1", "2"), ("2", "1"), ("1", "2")):
        for path, text in zip(paths, texts, strict=True):
            Path(path).write_text(text, encoding="utf-8")
        found.append(fingerprints(tasks, list(tasks)))
    first, exchanged, again = found
    assert first == again
    assert all(first[key] != exchanged[key] for key in tasks)
