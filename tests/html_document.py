"""A page of HTML, parsed: its elements, attributes and words."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Document(HTMLParser):
    """Elements, attributes and words of a page; fails where tags do not match."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.words, self.headings, self.open = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    def values(self, name):
        return [value for _, each, value in self.attributes if each == name]
