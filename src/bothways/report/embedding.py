"""SVG drawings made fit to stand inside an HTML page.

A drawing is parsed and written anew: without namespaces (HTML knows ``svg`` by itself), with ids of its own, and only
if nothing in it can run or be fetched.
"""

import re
import xml.etree.ElementTree as ElementTree

from bothways.errors import InvalidInput

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
# The elements that Vega's SVG writer uses, and their kin; no script, style, image, link or foreign HTML.
_ELEMENTS = frozenset(
    {"svg", "g", "path", "rect", "line", "circle", "ellipse", "polyline", "polygon", "text", "tspan", "title", "desc"}
    | {"defs", "clipPath", "linearGradient", "radialGradient", "stop", "use"}
)
# What a drawing inside a page does better without: the page's font is to hold, its style sheet is not to match by
# class, and the figure is described as a whole.
_LEFT_OUT = frozenset({"class", "font-family", "pointer-events", "role", "version"})
_REFERENCE = re.compile(r"url\(\s*(['\"]?)(.*?)\1\s*\)")


def embedded_svg(svg: str, *, prefix: str) -> str:
    """``svg`` for the inside of an HTML page, each of its ids starting with ``prefix``.

    The drawing gets its own width as CSS variable ``--width``, for the page to limit it to.

    Raises:
        InvalidInput: ``svg`` is not a well-formed SVG drawing with a view box, or holds something that could run or be
            fetched.
    """
    if "<!" in svg:
        raise InvalidInput(
            "a figure's SVG: expected no document type, entity or comment, got '<!'. Pass the plain <svg> element."
        )
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise InvalidInput(
            f"a figure: expected a well-formed SVG drawing, got one that does not parse ({error}). "
            "Pass what a chart function of this package returns."
        ) from error
    if root.tag.removeprefix(_SVG) != "svg" or "viewBox" not in root.attrib:
        raise InvalidInput(
            f"a figure: expected an <svg> element with a viewBox, got <{root.tag}> with {sorted(root.attrib)}. "
            "Pass what a chart function of this package returns."
        )
    for element in root.iter():
        element.tag = _checked_tag(element.tag)
        element.attrib = dict(
            _checked_attribute(key, value, prefix)
            for key, value in element.attrib.items()
            if key not in _LEFT_OUT and not key.startswith("aria-")
        )
    _size_by_page(root)
    return ElementTree.tostring(root, encoding="unicode")


def _size_by_page(root: ElementTree.Element) -> None:
    """Leave the size on the page to the style sheet, which knows how wide the screen is."""
    try:
        width = float(root.attrib["viewBox"].split()[2])
    except (IndexError, ValueError) as error:
        raise InvalidInput(
            f"a figure: expected a viewBox of four numbers, got {root.attrib['viewBox']!r}. "
            "Pass what a chart function of this package returns."
        ) from error
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib["style"] = f"--width: {width:g}px"
    root.attrib["aria-hidden"] = "true"  # described by the figure's alternative text


def _checked_tag(tag: str) -> str:
    name = tag.removeprefix(_SVG)
    if name not in _ELEMENTS:
        raise InvalidInput(
            f"a figure's SVG: expected only drawing elements, got <{name}>. Remove it; reports run and fetch nothing."
        )
    return name


def _checked_attribute(key: str, value: str, prefix: str) -> tuple[str, str]:
    """Return the attribute with ids and references to ids prefixed."""
    name = "href" if key == _XLINK_HREF else key
    if name == "href" and value.startswith("#"):
        return name, f"#{prefix}{value[1:]}"
    if name == "id":
        return name, prefix + value
    references = [match[2] for match in _REFERENCE.finditer(value)] if "url" in value.lower() else []
    outside = any(not reference.startswith("#") for reference in references)
    hidden = "url" in value.lower() and not references
    if name.lower().startswith("on") or name in ("href", "style") or outside or hidden:
        raise InvalidInput(
            f"a figure's SVG: expected attributes that only draw, got {name}={value!r}. "
            "Remove it; reports run and fetch nothing."
        )
    return name, _REFERENCE.sub(lambda match: f"url(#{prefix}{match[2][1:]})", value)
