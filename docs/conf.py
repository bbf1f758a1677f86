"""Sphinx configuration. Nothing here needs the network."""

from __future__ import annotations

import re
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

import yaml

from dask_exo.config import EFFECT, yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

project = "dask_exo"
author = "dask_exo developers"
copyright = f"2026, {author}"
release = metadata.version("dask-exo")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
root_doc = "index"
default_role = "py:obj"
html_theme = "furo"
html_title = "dask_exo"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autosummary_generate = False
numpydoc_show_class_members = False
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3


def documented_keys(text: str) -> Iterator[tuple[str, str, str]]:
    """Each key of a YAML file in Dask's style, its default, and the comment above it."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if note := re.fullmatch(r" *# ?(.*)", line):
            comment.append(note[1])
        elif entry := re.fullmatch(r"((?:  )*)([\w-]+): *(.*)", line):
            path[len(entry[1]) // 2 :] = [entry[2]]
            if entry[3]:
                yield ".".join(path), entry[3], " ".join(comment)
            comment = []
        elif line.strip():
            raise ValueError(f"cannot document {line!r}")


def allowed(schema: dict[str, Any], key: str) -> str:
    """What the schema says that a key may be, in words."""
    for part in key.split(".")[1:]:
        schema = schema["properties"][part]
    if "enum" in schema:
        values = [yaml.safe_dump(v).split("\n")[0] for v in schema["enum"]]
        return ", ".join(f"`{v}`" for v in values)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    words = {
        "minimum": "at least {}",
        "exclusiveMinimum": "more than {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "less than {}",
    }
    limits = [word.format(schema[name]) for name, word in words.items() if name in schema]
    return ", ".join([" or ".join(kinds), *limits])


def variable(key: str) -> str:
    """The environment variable that sets a key.

    >>> variable("exo.shuffle.late-factor")
    'DASK_EXO__SHUFFLE__LATE_FACTOR'
    """
    return "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def configuration_table() -> str:
    """The keys of exo.yaml as a Markdown table."""
    package = resources.files("dask_exo")
    schema = yaml.safe_load(package.joinpath("exo-schema.yaml").read_text(encoding="utf-8"))
    rows = ["| key, and variable | default | allowed | meaning |", "|---|---|---|---|"]
    for key, default, meaning in documented_keys(
        package.joinpath("exo.yaml").read_text(encoding="utf-8")
    ):
        cells = [f"`{key}` `{variable(key)}`", f"`{default}`", allowed(schema, key), meaning]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def effect_table() -> str:
    """The keys that have an effect only if another one has some value, as a Markdown table."""
    rows = ["| without effect | unless |", "|---|---|"]
    for keys, other, value in EFFECT:
        named = ", ".join(f"`exo.{key}`" for key in keys)
        rows.append(f"| {named} | `exo.{other}` is `{yaml_text(value)}` |")
    return "\n".join(rows)


MADE = {
    "<!-- configuration table -->": configuration_table,
    "<!-- effect table -->": effect_table,
}


def insert_configuration(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Put tables where a page asks for them."""
    for marker, text in MADE.items():
        if marker in source[0]:
            source[0] = source[0].replace(marker, text())


def setup(app: Sphinx) -> None:
    """Register the extension that writes the configuration table."""
    app.connect("source-read", insert_configuration)
