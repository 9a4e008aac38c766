import re
from dataclasses import replace

import pytest

from bothways.errors import InvalidInput, OutputExists
from bothways.report import (
    Bar,
    Code,
    Figure,
    KeyFigure,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    TextItem,
    TextList,
    bars,
    confusion_matrix,
    learning_curve,
    render,
    write,
)
from bothways.report.page import LONGEST_TEXT
from bothways.report.token_maps import token_map
from html_document import Document

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"
SMALL_SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10">{}</svg>'


def one_section(*blocks):
    return Page("Title", "", (Section("Section", blocks),))


def full_page(text="words", svg=None):
    svg = svg or confusion_matrix([text, "b"], [[1, 2], [3, 4]])
    pair = tuple(
        token_map([text, "</s>"], weights, text) for weights in ([[0.5, 0.5], [0.1, 0.9]], [[1, 0], [0.4, 0.6]])
    )
    curve = learning_curve([2.0, 1.0], [(1, 0.5)], text)
    first = (
        KeyFigures((KeyFigure(text, text, text), KeyFigure("Accuracy", "0.9"))),
        Paragraph(text),
        Table((text, "n"), ((text, text), ("a", "1")), text, ("n",)),
        TextList((TextItem(text, {text: text, "nothing": ""}), TextItem("plain")), text),
        Code((text, "second  line"), text),
    )
    second = (
        Figure(svg, text, text),
        Figure(pair, "Pair", "two maps"),
        Figure(curve, "Curve", "two lines"),
        Figure(bars([Bar(text, 0.5, (0.4, 0.6))], text), "Bars", "a bar"),
    )
    return Page(text, text, (Section(text, first), Section("Figures", second)), text)


def test_a_page_with_every_block_is_well_formed_html_with_its_words_in_it():
    document = Document(render(full_page("distinctive")))
    assert document.words.count("distinctive") > 15
    assert document.tags.count("svg") == 6
    assert {"h1", "h2", "nav", "table", "figcaption", "footer", "dl", "ol", "pre"} <= set(document.tags)
    assert "distinctive\nsecond  line\n" in "".join(document.words)  # code keeps its lines and spaces


def test_nothing_in_a_page_runs_or_reaches_for_the_network():
    html = render(full_page())
    document = Document(html)
    assert {"script", "link", "iframe", "img", "object", "base", "form"}.isdisjoint(document.tags)
    assert [name for _, name, _ in document.attributes if name.startswith("on") or name in ("src", "srcset")] == []
    assert all(value.startswith("#") for value in document.values("href"))
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert any("default-src 'none'" in value for value in document.values("content"))


def test_markup_in_any_text_is_shown_and_not_obeyed():
    words = "w" * len(ATTACK)  # long texts are set in another way
    harmless, attacked = Document(render(full_page(words))), Document(render(full_page(ATTACK)))
    assert attacked.tags == harmless.tags
    assert [(tag, name) for tag, name, _ in attacked.attributes] == [
        (tag, name) for tag, name, _ in harmless.attributes
    ]
    assert attacked.words.count(ATTACK) > 10
    assert ATTACK in attacked.values("aria-label")


def test_ids_are_unique_on_a_page_and_every_reference_meets_its_own_drawing():
    svg = confusion_matrix(["a", "b"], [[1, 2], [3, 4]])
    assert ' id="' in svg
    html = render(one_section(Figure(svg, "1", "1"), Figure((svg, svg), "2", "2")))
    ids = Document(html).values("id")
    assert len(ids) == len(set(ids))
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        references = re.findall(r"url\(#([^)]*)\)", drawing)
        assert references
        assert set(references) <= set(re.findall(r' id="([^"]*)"', drawing))


def test_links_of_the_contents_lead_to_their_sections():
    document = Document(render(full_page()))
    links = [value.removeprefix("#") for tag, name, value in document.attributes if (tag, name) == ("a", "href")]
    assert links == [value for tag, name, value in document.attributes if (tag, name) == ("section", "id")]
    assert "nav" not in Document(render(one_section(Paragraph("alone")))).tags


def test_the_same_page_gives_the_same_bytes(tmp_path):
    write(full_page(), tmp_path / "one.html")
    write(full_page(), tmp_path / "deeper" / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "deeper" / "two.html").read_bytes()
    assert (tmp_path / "one.html").read_text(encoding="utf-8") == render(full_page())


def test_a_page_that_cannot_be_rendered_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.html"
    write(full_page(), path)
    before = path.read_bytes()
    with pytest.raises(InvalidInput):
        write(one_section(Figure("<p>no drawing</p>", "", "")), path, overwrite=True)
    with pytest.raises(OutputExists):
        write(one_section(), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_characters_that_html_cannot_hold_are_replaced(tmp_path):
    write(full_page("null \x00 half \ud83d bell \x07"), tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "null \ufffd half \ufffd bell \ufffd" in Document(html).words
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", html)


def test_only_tables_with_a_caption_are_counted_and_numeric_columns_are_marked():
    table = Table(("class", "F1"), (("sport", "0.91"), ("health", "0.88")), numeric=("F1",))
    html = render(one_section(table, replace(table, caption="The classes.")))
    assert "<b>Table 1.</b> The classes." in html
    assert "Table 2" not in html
    assert html.count('<th scope="col">class</th><th scope="col" class="number">F1</th>') == 2
    assert html.count('class="number"') == 6


@pytest.mark.parametrize("table", [Table(("a", "b"), (("1",),)), Table(("a",), (), numeric=("b",))])
def test_tables_that_do_not_fit_their_columns_are_refused(table):
    with pytest.raises(InvalidInput, match="expected"):
        render(one_section(table))


def test_of_a_long_text_the_beginning_is_shown_and_the_rest_counted():
    text = "word " * 1000
    document = Document(render(one_section(TextList((TextItem(text),)))))
    shown = next(words for words in document.words if words.startswith("word")).removesuffix(" ")
    assert text.startswith(shown)
    assert LONGEST_TEXT - 40 <= len(shown) <= LONGEST_TEXT
    assert f"… and {len(text) - len(shown)} more characters" in document.words
    html = render(one_section(TextList((TextItem("x" * LONGEST_TEXT),))))
    assert "x" * LONGEST_TEXT in html
    assert "more characters" not in html


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<rect onload="alert(1)"/>',
        '<a href="#x"/>',
        '<use href="https://example.org/x.svg#y"/>',
        '<use xmlns:xlink="http://www.w3.org/1999/xlink" xlink:href="data:image/svg+xml,x"/>',
        '<image href="x.png"/>',
        "<style>*{background:url(x)}</style>",
        '<rect style="fill:red"/>',
        '<rect fill="url(https://example.org/x)"/>',
        '<rect fill="URL(//example.org/x)"/>',
        '<rect fill="url(\'https://example.org/x"/>',
        '<animate attributeName="href" to="javascript:alert(1)"/>',
        '<set attributeName="onclick" to="alert(1)"/>',
        '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml">x</p></foreignObject>',
        '<h:script xmlns:h="http://www.w3.org/1999/xhtml">alert(1)</h:script>',
        "<!-- -->",
        "<rect>",
    ],
)
def test_drawings_that_could_run_or_fetch_something_are_refused(inside):
    render(one_section(Figure(SMALL_SVG.format('<rect fill="red"/>'), "", "")))
    with pytest.raises(InvalidInput, match="figure"):
        render(one_section(Figure(SMALL_SVG.format(inside), "", "")))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SMALL_SVG.replace("<svg", "<g").replace("</svg", "</g"), "expected an <svg> element with a viewBox"),
        ("<svg/>", "expected an <svg> element with a viewBox"),
        (f'<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa">]>{SMALL_SVG.format("<text>&a;</text>")}', "document type"),
    ],
)
def test_what_is_no_plain_drawing_is_refused(other, said):
    with pytest.raises(InvalidInput, match=said):
        render(one_section(Figure(other, "", "")))
