"""Sphinx configuration. Nothing here needs the network."""

from __future__ import annotations

import re
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

project = "dask_exo"
author = "dask_exo developers"
copyright = f"2026, {author}"
release = metadata.version("dask-exo")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "myst_parser"]
exclude_patterns = ["_build"]
root_doc = "index"
default_role = "py:obj"
html_theme = "alabaster"
html_theme_options = {"description": "Dask on Ray, with push-based shuffles"}

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


def configuration_table() -> str:
    """The keys of exo.yaml as a Markdown table."""
    package = resources.files("dask_exo")
    schema = yaml.safe_load(package.joinpath("exo-schema.yaml").read_text(encoding="utf-8"))
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key, default, meaning in documented_keys(
        package.joinpath("exo.yaml").read_text(encoding="utf-8")
    ):
        cells = [f"`{key}`", f"`{default}`", allowed(schema, key), meaning]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def insert_configuration(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Put the table where a page asks for it."""
    marker = "<!-- configuration table -->"
    if marker in source[0]:
        source[0] = source[0].replace(marker, configuration_table())


def setup(app: Sphinx) -> None:
    """Register the extension that writes the configuration table."""
    app.connect("source-read", insert_configuration)
