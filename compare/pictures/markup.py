"""HTML and SVG as trees of the standard library, which escapes text and attributes when it writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

from parsers.text import plain

Child: TypeAlias = "str | Element | Iterable[Child] | None"


def h(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element. Attributes: class_ for class, data_json for data-json; None leaves one out."""
    known = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    element = Element(tag, {name: value if isinstance(value, str) else f"{value:g}" for name, value in known.items()})
    for name, value in element.attrib.items():
        element.set(name, plain(value, keep="\n"))
    _append(element, children)
    return element


def _append(element: Element, children: Iterable[Child]) -> None:
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif isinstance(child, str):
            _add_text(element, plain(child, keep="\n"))
        elif child is not None:
            _append(element, child)


def _add_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def page(root: Element) -> str:
    """A whole document. The text of <style> is written as it is: nothing of a record may be put there."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"
