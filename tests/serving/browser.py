"""The studio in a real browser, without a network: chromium with its own driver, both as Debian has them."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

WIDE, NARROW = 1280, 360
_BROWSERS, _DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver")


@contextmanager
def started_browser():
    """Start a browser without a window; skip the tests where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    browser, driver = (next(filter(None, map(shutil.which, names)), None) for names in (_BROWSERS, _DRIVERS))
    if browser is None or driver is None:
        pytest.skip("no chromium with its driver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield started
    finally:
        started.quit()


class Studio:
    """The page of a server, and what a person does on it."""

    def __init__(self, driver, url):
        self.driver = driver
        self.url = url

    def open(self, *, width=WIDE, dark=False, ready=True):
        """Open the page on a screen of this width, in light or dark mode, with nothing of earlier visits."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(self.url)
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.refresh()
        self.driver.get_log("browser")
        if ready:
            self.wait_until_ready()
        return self

    def wait_until_ready(self):
        """Wait until the page has the models of the server."""
        self.wait(lambda: self.do("return !at('run').disabled"))

    def do(self, script, *values):
        """Run a script in the page; what it returns comes back."""
        return self.driver.execute_script(script, *values)

    def wait(self, condition, seconds=20):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda _: condition())

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        """The texts of elements as they were written, with white space put together."""
        return [" ".join(each.get_property("textContent").split()) for each in self.all(selector)]

    def text(self, selector):
        (text,) = self.texts(selector)
        return text

    def pick(self, name, activity=None, kind="model"):
        """Choose a model or an index, and what to do with it."""
        from selenium.webdriver.support.ui import Select

        Select(self.all("#model")[0]).select_by_value(f"{kind} {name}")
        self.wait(lambda: self.do("return state.activity && state.current.id") == name)
        if activity is not None:
            Select(self.all("#activity")[0]).select_by_value(activity)

    def fill(self, **values):
        """Paste texts into fields, and set options; the driver cannot type what is beyond the basic plane."""
        for name, value in values.items():
            script = "(at(`field-${arguments[0]}`) ?? at(`option-${arguments[0]}`)).value = arguments[1]"
            self.do(script, name, value)

    def run(self, **values):
        """Fill the form and send it; the texts of the items of the answer, or the error."""
        self.fill(**values)
        self.do("at('run').click()")
        self.wait_for_answer()
        return self.texts("#answer .items > li") or self.text("#error")

    def wait_for_answer(self):
        self.wait(lambda: self.do("return !at('request').hidden || at('error').textContent !== ''"))

    def fits(self):
        """True if nothing is wider than the screen."""
        return self.do(
            "const { scrollWidth, clientWidth } = document.documentElement; return scrollWidth === clientWidth"
        )

    def bars(self):
        """Names and percentages of the bars of each item."""
        script = """return [...document.querySelectorAll("#answer .items > li")].map((item) =>
          [...item.querySelectorAll(".bars li")].map((bar) => [".label", ".value"].map((part) =>
            bar.querySelector(part).textContent.replace(/^✓ | \\(chosen\\)$/g, ""))))"""
        return self.do(script)

    def marks(self):
        """The marked parts of texts, each with its note."""
        script = """return [...document.querySelectorAll("#answer mark")].map((mark) =>
          [mark.firstChild.data, mark.querySelector("small")?.textContent ?? ""])"""
        return [tuple(each) for each in self.do(script)]

    def violations(self, axe):
        """What axe-core finds against level A and AA."""
        self.do(axe)
        levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
        script = "const [levels, done] = arguments; axe.run({ runOnly: levels }).then(done)"
        found = self.driver.execute_async_script(script, levels)
        assert found["passes"], "axe looked at nothing"
        return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found["violations"]]

    def log(self):
        """What the browser complained of since the page was opened."""
        return [each["message"] for each in self.driver.get_log("browser")]


def axe_source():
    """The code of axe-core, from the package that carries it."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python carries axe-core")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
