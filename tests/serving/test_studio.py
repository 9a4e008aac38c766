"""The studio, used in a real browser: what every task shows, keys and errors, files, keyboard, and accessibility."""

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from browser import NARROW, WIDE, Studio, axe_source, started_browser
from serving_cases import running

from bothways import MultiTask, SemanticSearch, SentenceEmbedder, TaskData, TextTagger
from bothways.judging import Judge
from bothways.serving.models import Models, ServedModel
from classifier_cases import named_rows, plant_words
from contract_cases import rows
from everyday import some_of
from tiny_models import write_checkpoint

CPU = {"device": "cpu"}
EMOJI = "👩‍👩‍👧 e\u0301cole 💡"
TEXTS = "w5 w25\nw6 w32 w33\nw7"


@pytest.fixture(scope="module")
def browser():
    with started_browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def site(folders, bert, tmp_path_factory):
    """A server of a model for each task, a tagger that knows its words, a judge, two tasks together, and an index."""
    made = tmp_path_factory.mktemp("site")
    write_checkpoint(made / "planted")
    tagger = TextTagger.from_pretrained(plant_words(made / "planted"), **CPU)
    tagger.fit(named_rows(24), validation=named_rows(12), epochs=8, learning_rate=1e-2, show_progress=False)
    tagger.save(made / "names", golden=None)
    asked = [
        {"query": f"w5 {number}", "passage": f"w{5 + number % 2}", "answer": "w5", "context_relevance": number % 2}
        for number in range(40)
    ]
    quick = {"epochs": 1, "show_progress": False}
    Judge.train(bert, asked, "context_relevance", opening=CPU, **quick).save(made / "judge")
    several = MultiTask.from_pretrained(bert, **CPU)
    data = {"animal": rows("single"), "number": rows("regression")}
    several.fit(
        {
            "animal": TaskData(data["animal"], data["animal"]),
            "number": TaskData(data["number"], data["number"], target="regression"),
        },
        **quick,
    )
    several.save(made / "several")
    found = ["w5 w6 and Captain's words", "w9 w10 of captaincy", "w30 w31 w32"]
    embedder = SentenceEmbedder.from_pretrained(bert, **CPU)
    SemanticSearch.build(embedder, found, fields=[{"year": 2020 + place} for place in range(3)]).save(made / "index")
    models = [*folders.values(), *(made / name for name in ("names", "judge", "several"))]
    with running(*models, indexes=[str(made / "index")]) as server:
        yield server


@pytest.fixture
def studio(browser, site):
    return Studio(browser, site.url).open()


def predicted(site, model, *inputs, **more):
    answer = site.post("/v1/predict", {"model": model, "inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


def shown_percent(value):
    return f"{100 * value:.1f} %"


# --- the page ---


def test_the_page_is_one_document_that_asks_for_nothing_but_the_api(site, studio):
    loaded = studio.do("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert loaded
    assert all(each.startswith(f"{site.url}/v1/models") for each in loaded)
    assert studio.log() == []
    answer = site.get("/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"


def test_a_script_that_is_not_of_the_page_does_not_run(studio):
    studio.do("document.body.append(element('script', {}, 'window.ran = true'))")
    assert studio.do("return window.ran") is None
    assert "Content Security Policy" in " ".join(studio.log())


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)])
def test_nothing_is_wider_than_the_screen(browser, site, width, dark):
    studio = Studio(browser, site.url).open(width=width, dark=dark)
    studio.pick("embedding")
    studio.run(texts=f"{TEXTS}\n{'w8' * 60}")
    assert studio.fits()
    light = sum(json.loads(f"[{studio.do('return getComputedStyle(document.body).backgroundColor')[4:-1]}]"))
    assert (light < 200) is dark


# --- every task ---


def test_labels_are_bars_with_their_probabilities_the_label_set_and_the_domain(site, studio):
    texts = ["w5 w25", "w6 w50 w51 w40 w41"]
    found = predicted(site, "classification", *texts, options={"coverage": 0.8})
    assert {each["out_of_domain"] for each in found} == {True, False}
    studio.pick("classification")
    items = studio.run(texts="\n".join(texts), coverage="0.8")
    for item, bars, text, prediction in zip(items, studio.bars(), texts, found, strict=True):
        assert item.startswith(text)
        assert bars == [[name, shown_percent(value)] for name, value in prediction["probabilities"].items()]
        assert f"✓ {prediction['label']}" in item
        assert f"Label set: {', '.join(prediction['label_set']) or 'empty'}." in item
        assert ("Out of domain" in item) is prediction["out_of_domain"]
    widths = studio.do("return [...document.querySelectorAll('.bar span')].map((each) => each.style.width)")
    expected = [100 * value for prediction in found for value in prediction["probabilities"].values()]
    assert [float(width.rstrip("%")) for width in widths] == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize(("calibrated", "says"), [(True, "are calibrated."), (False, "are not calibrated.")])
def test_the_page_says_whether_probabilities_are_calibrated(browser, site, monkeypatch, calibrated, says):
    described = ServedModel.described
    monkeypatch.setattr(ServedModel, "described", lambda served: described(served) | {"calibrated": calibrated})
    studio = Studio(browser, site.url).open()
    studio.pick("classification")
    studio.run(texts="w5")
    assert f"The probabilities {says}" in studio.texts("#answer > .note")


def test_pairs_are_labelled_and_their_words_explained(site, studio):
    studio.pick("pairs")
    (item,) = studio.run(first="w25", second="w5")
    (found,) = predicted(site, "pairs", ["w25", "w5"])
    assert f"✓ {found['label']}" in item
    studio.do("document.querySelector('#answer .items button').click()")
    studio.wait(lambda: studio.all(".explanation"))
    explained = site.post("/v1/explain", {"model": "pairs", "input": ["w25", "w5"]}).json()["explanation"]
    assert studio.texts(".explanation .for, .explanation .against") == ["w25", "w5"]
    for word in explained["words"]:
        kind = "for" if word["weight"] > 0 else "against"
        assert word["word"] in studio.texts(f".explanation .{kind}")
    assert explained["score_of"] in studio.text(".explanation h3")


def test_explained_words_stand_behind_emoji_and_combining_marks(site, studio):
    text = f"{EMOJI} w5 💡w25"
    studio.pick("classification")
    studio.run(texts=text)
    studio.do("document.querySelector('#answer .items button').click()")
    studio.wait(lambda: studio.all(".explanation"))
    assert studio.text(".explanation .text") == text
    explained = site.post("/v1/explain", {"model": "classification", "input": text}).json()["explanation"]
    words = [each["word"] for each in explained["words"]]
    assert studio.texts(".explanation .for, .explanation .against") == words
    assert {"👩", "e\u0301cole", "w5"} <= {word.strip("\u200d") for word in words}


@pytest.mark.parametrize(
    ("model", "given", "read"),
    [
        ("classification", {"id": "x", "text": "💡 w5"}, ["💡 w5"]),
        ("pairs", {"text_b": "💡 w5", "text_a": "w6 💡💡 w7"}, ["w6 💡💡 w7", "💡 w5"]),
        ("tagging", ["💡", "w5", "w6"], ["💡 w5 w6"]),
        ("multiple_choice", ["💡 w5", ["w6 💡 w7", "w8"]], ["💡 w5", "w6 💡 w7", "w8"]),
    ],
)
def test_places_of_explained_words_count_utf16_in_the_texts_that_were_read(site, model, given, read):
    body = {"model": model, "input": given, "offsets": "utf16", "method": "leave-one-out"}
    answer = site.post("/v1/explain", body)
    assert answer.status_code == 200, answer.text
    for word in answer.json()["explanation"]["words"]:
        units = read[word["part"]].encode("utf-16-le")
        assert units[2 * word["start"] : 2 * word["end"]].decode("utf-16-le") == word["word"]


def test_the_spans_of_names_are_right_behind_emoji_and_combining_marks(site, studio):
    text = f"{EMOJI} w5 w6 👍🏽 w7 e\u0301"
    studio.pick("names")
    studio.run(texts=text)
    (found,) = predicted(site, "names", text)
    assert [(each["label"], each["text"]) for each in found["spans"]] == [("PER", "w5 w6"), ("LOC", "w7")]
    assert [(mark, note.split()[0]) for mark, note in studio.marks()] == [("w5 w6", "PER"), ("w7", "LOC")]
    before = studio.do("return document.querySelector('#answer .text').firstChild.data")
    assert before == f"{EMOJI} "


def test_answers_are_marked_in_a_context_with_emoji(site, studio):
    context = f"{EMOJI} w5 w10 w11 w25 😀 w30"
    options = {"top": 3, "threshold": -1e9}
    (found,) = predicted(site, "question-answering", ["w5", context], options=options)
    studio.pick("question-answering")
    (item,) = studio.run(question="w5", context=context, top="3", threshold="-1e9")
    assert item.startswith(found["answer"])
    expected = [
        (each["text"], f"{n}: {shown_percent(each['probability'])}") for n, each in enumerate(found["answers"], 1)
    ]
    assert sorted(studio.marks()) == sorted(expected)
    assert any(each["start"] > len(EMOJI) for each in found["answers"])


def test_a_context_without_an_answer_says_so(studio):
    studio.pick("question-answering")
    (item,) = studio.run(question="w5", context="w30 w31", threshold="1e9")
    assert "The context has no answer." in item
    assert studio.all("#answer mark") == []


def test_choices_are_bars(site, studio):
    studio.pick("multiple_choice")
    choices = ["w6 w30", "w5 w31"]
    (item,) = studio.run(context="w5 w25 w9", choices="\n".join(choices))
    (found,) = predicted(site, "multiple_choice", ["w5 w25 w9", choices])
    assert f"✓ {found['choice']}" in item
    shown = map(shown_percent, found["probabilities"])
    assert studio.bars() == [[list(each) for each in zip(choices, shown, strict=True)]]


def test_masks_are_filled_in_place(site, studio):
    text = "w5 [MASK] w20 [MASK] 💡"
    studio.pick("masked_lm")
    studio.run(texts=text, top="3")
    (found,) = predicted(site, "masked_lm", text, options={"top": 3})
    words = found["fillings"][0]["words"]
    assert [mark for mark, _ in studio.marks()] == words
    studio.do("document.querySelectorAll('#answer mark small').forEach((each) => each.remove())")
    assert studio.text("#answer .text") == f"w5 {words[0]} w20 {words[1]} 💡"
    assert len(studio.all("#answer .bars li")) == 6


def test_texts_are_compared_in_a_matrix_and_on_a_map(site, studio):
    texts = ["w5 w25", "w6 w32 w33", "w7", "w40 w41", "w42 w43 w44"]
    answer = site.post("/v1/embeddings", {"model": "embedding", "input": texts}).json()
    vectors_NK = np.array([each["embedding"] for each in answer["data"]])
    units_NK = vectors_NK / np.linalg.norm(vectors_NK, axis=1, keepdims=True)
    studio.pick("embedding")
    studio.run(texts="\n".join(texts))
    shown_NN = np.array([float(each) for each in studio.texts(".matrix td")]).reshape(5, 5)
    np.testing.assert_allclose(shown_NN, units_NK @ units_NK.T, atol=0.0051)
    place = "({ cx, cy }) => [cx.baseVal.value, cy.baseVal.value]"
    script = f"return [...document.querySelectorAll('.map circle')].map({place})"
    titles = studio.texts(".map title")
    places_N2 = np.array(studio.do(script))[[titles.index(text) for text in texts]]
    centred_NK = vectors_NK - vectors_NK.mean(0)
    expected_N2 = centred_NK @ np.linalg.svd(centred_NK)[2][:2].T
    for axis in range(2):
        assert abs(np.corrcoef(places_N2[:, axis], expected_N2[:, axis])[0, 1]) > 0.9999


def test_principal_components_of_texts_that_are_alike_are_no_accident(studio):
    assert studio.do("return principalComponents([[1, 2], [1, 2], [1, 2]])") == {
        "points": [[0, 0]] * 3,
        "shares": [0, 0],
    }
    assert studio.do("return principalComponents([[1, 2, 3], [3, 6, 9]]).shares") == pytest.approx([1, 0])


def test_documents_are_ranked(site, studio):
    documents = TEXTS.split("\n")
    studio.pick("embedding", "rerank")
    items = studio.run(query="w6 w32", texts=TEXTS, top_n="2")
    answer = site.post("/v1/rerank", {"model": "embedding", "query": "w6 w32", "documents": documents}).json()
    best = [each["index"] for each in answer["results"]][:2]
    assert [re.fullmatch(r"(.+?)Score .+ · document (\d)", item).groups() for item in items] == [
        (documents[place], str(place + 1)) for place in best
    ]


def test_a_judge_answers_its_question(site, studio):
    studio.pick("judge", "judge")
    studio.run(query="w5 3", passage="w6")
    answer = site.post("/v1/judge", {"model": "judge", "inputs": [{"query": "w5 3", "passage": "w6"}]}).json()
    assert studio.text("#answer > .text") == answer["question"]
    assert studio.text("#answer .bars li:first-child") == f"yes{shown_percent(answer['judgements'][0]['probability'])}"


def test_several_tasks_stand_below_each_other_and_are_explained_apart(site, studio):
    studio.pick("several")
    (item,) = studio.run(texts="w5 w25")
    (found,) = predicted(site, "several", "w5 w25")
    assert studio.texts("#answer h3") == ["animal", "number"]
    assert f"✓ {found['animal']['label']}" in item
    assert float(studio.text("#answer .number")) == pytest.approx(found["number"]["value"], rel=0.006)
    studio.do("[...document.querySelectorAll('#answer button')].at(-1).click()")
    studio.wait(lambda: studio.all(".explanation"))
    explained = site.post("/v1/explain", {"model": "several", "task": "number", "input": "w5 w25"}).json()[
        "explanation"
    ]
    assert explained["score_of"] in studio.text(".explanation h3")


def test_hits_have_the_words_of_the_query_marked(site, studio):
    studio.pick("index", kind="index")
    items = studio.run(query="CAPTAIN w10", mode="lexical", top="2")
    hits = site.post("/v1/search", {"query": "CAPTAIN w10", "mode": "lexical", "top": 2}).json()["hits"]
    assert [item.split("Score")[0] for item in items] == [hit["text"] for hit in hits]
    assert {*studio.texts("#answer mark")} == {"w10", "captaincy", "Captain"}
    assert "year: 20" in items[0]


# --- what is said of a request ---


def test_tokens_times_and_what_was_cut_are_told(studio):
    studio.pick("classification")
    studio.run(texts=f"w5\n{'w9 ' * 40}", on_overflow="truncate")
    assert re.fullmatch(
        r"\d+ tokens in \d+ ms: \d+ ms in the queue, \d+ ms computing; \d+ ms until it was here\.",
        studio.text("#status"),
    )
    assert studio.texts("#warnings li") == ["⚠ input 1: 24 tokens were not read."]


def test_a_bad_text_among_others_has_its_error_beside_it(studio):
    studio.pick("masked_lm")
    bad, good = studio.run(texts="w5 w6\nw5 [MASK]")
    assert "has no mask" in bad
    assert "Words for the mask" in good
    assert studio.run(texts="w5 w6") == "The server answered: text 1 has no mask: write [MASK] where a word is missing."
    assert studio.all("#answer > *") == []


def test_texts_and_names_are_never_markup(studio):
    text = "<img src=x onerror='window.ran = true'> <b>w5</b>"
    studio.pick("classification")
    (item,) = studio.run(texts=text)
    assert item.startswith(text)
    assert studio.all("#answer img, #answer b") == []
    assert studio.do("return window.ran") is None


def test_long_lists_are_drawn_in_parts(studio):
    studio.pick("classification")
    assert len(studio.run(texts="\n".join(["w5 w9"] * 130))) == 100
    studio.do("[...document.querySelectorAll('#answer button')].at(-1).click()")
    assert len(studio.all("#answer .items > li")) == 130


def test_an_empty_field_is_asked_for(studio):
    studio.pick("pairs")
    assert studio.run(first="w5", second=" ") == "Write something into “Second text”."
    assert studio.do("return document.activeElement.id") == "field-second"


# --- requests as code ---


@pytest.mark.parametrize("language", some_of(["curl", "Python", "JavaScript"], "curl"))
def test_the_request_as_code_gives_the_same_answer(browser, folders, tmp_path, language):
    program = {"curl": "curl", "Python": sys.executable, "JavaScript": "node"}[language]
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    keys = tmp_path / "keys"
    keys.write_text("me:a-secret-key\n")
    text = 'w5 it\'s "w6" $HOME `w7` \\n 💡 e\u0301'
    with running(folders["classification"], api_keys=keys) as server:
        studio = Studio(browser, server.url).open(ready=False)
        give_key(studio, "a-secret-key")
        studio.run(texts=text, calibrated="false")
        studio.do("document.querySelector(`#languages input[value=${arguments[0]}]`).click()", language)
        code = studio.do("return at('code').textContent")
        assert "a-secret-key" not in code
        command = {
            "curl": ["sh", "-c", code],
            "Python": [program, "-c", code],
            "JavaScript": [program, "--input-type=module", "-e", code.replace("console.log(", "log(")],
        }[language]
        if language == "JavaScript":
            command[-1] = f"const log = (value) => console.log(JSON.stringify(value));\n{command[-1]}"
        ran = subprocess.run(
            command,
            env={**os.environ, "BOTHWAYS_API_KEY": "a-secret-key"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        shown = studio.do("at('json-details').open = true; showJson(); return at('json').textContent")
        given = eval(ran.stdout) if language == "Python" else json.loads(ran.stdout)
        assert given == json.loads(shown)


def test_the_code_is_copied(browser, studio):
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"], "origin": studio.url})
    studio.pick("classification")
    studio.run(texts="w5")
    studio.do("at('copy').click()")
    studio.wait(lambda: studio.text("#status") == "Copied.")
    copied = browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == studio.do("return at('code').textContent")
    assert copied.startswith(f"curl -s {studio.url}/v1/predict")


# --- keys, and servers that do not answer ---


def give_key(studio, key):
    studio.do("at('key').value = arguments[0]; document.querySelector('#key-form button').click()", key)
    studio.wait(lambda: studio.do("return at('error').textContent !== '' || !at('run').disabled"))


def test_a_key_is_asked_for_and_a_wrong_one_refused(browser, folders, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("me:a-secret-key\n")
    with running(folders["classification"], api_keys=keys) as server:
        studio = Studio(browser, server.url).open(ready=False)
        studio.wait(lambda: studio.text("#error"))
        assert studio.text("#error") == "This server asks for an API key. Give one above."
        assert studio.do("return document.activeElement.id") == "key"
        give_key(studio, "another-key")
        studio.wait(lambda: "does not know" in studio.text("#error"))
        assert studio.do("return at('key').getAttribute('aria-invalid')") == "true"
        give_key(studio, "a-sécret-key")
        assert "ASCII" in studio.text("#error")
        give_key(studio, "a-secret-key")
        studio.wait_until_ready()
        assert "ant" in studio.run(texts="w5")[0]
        assert studio.do("return [Object.values(sessionStorage), localStorage.length, document.cookie]") == [
            ["a-secret-key"], 0, ""
        ]  # fmt: skip
        browser.refresh()
        studio.wait_until_ready()
        keys.write_text("me:quite-another\n")
        server.server.keys.reload()
        assert studio.run(texts="w5") == "The server does not know this API key. Correct it above."


def test_a_server_that_is_gone_is_told_of_and_may_come_back(browser, folders):
    with running(folders["classification"]) as server:
        studio = Studio(browser, server.url).open()
        studio.run(texts="w5")
    expected = "The server cannot be reached. See whether it still runs, and try again."
    assert studio.run() == expected
    assert studio.all("#answer > *") == []
    assert studio.text("#status") == ""


def test_a_server_that_still_opens_its_models_is_waited_for(browser, folders, monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(Models, "warm_up", lambda _: opened.wait(30))
    with running(folders["classification"], wait=False) as server:
        studio = Studio(browser, server.url).open(ready=False)
        studio.wait(lambda: studio.text("#status") == "The models are being opened …")
        opened.set()
        studio.wait(lambda: studio.text("#status") == "1 model, 0 search indexes.")


# --- files ---

CSV = 'id;text;more\r\n1;w5 w25;x\r\n2;"w6; ""w32""\nw33";y\r\n\r\n3;;z\r\n4;w7;"é"\r\n'


def test_a_chosen_file_gives_the_texts_of_a_column(studio, tmp_path):
    path = tmp_path / "some.csv"
    path.write_bytes(CSV.encode("cp1252"))
    studio.pick("classification")
    studio.all("#csv")[0].send_keys(str(path))
    studio.wait(lambda: studio.do("return at('field-texts').value") == "1\n2\n3\n4")
    studio.do("at('column').value = 1; at('column').dispatchEvent(new Event('change'))")
    assert studio.do("return at('field-texts').value") == 'w5 w25\nw6; "w32" w33\nw7'
    assert studio.text("#status") == "3 texts from the file."
    studio.do("at('column').value = 2; at('names').click()")
    assert studio.do("return [...at('column').options].map((each) => each.text)") == [
        "column 1",
        "column 2",
        "column 3",
    ]
    studio.do("at('column').value = 2; at('column').dispatchEvent(new Event('change'))")
    assert studio.do("return at('field-texts').value") == "more\nx\ny\nz\né"
    assert len(studio.run()) == 5


DROP = """
const [name, content] = arguments, transfer = new DataTransfer();
transfer.items.add(new File([content], name));
const event = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
at("field-texts").dispatchEvent(event);
return event.defaultPrevented;
"""


def test_a_dropped_file_gives_its_texts(studio):
    studio.pick("embedding", "rerank")
    assert studio.do(DROP, "some.csv", "\ufefftext,label\n😀 w5,a\nw6,b")
    studio.wait(lambda: studio.do("return at('field-texts').value") == "😀 w5\nw6")
    assert studio.do(DROP, "some.txt", "a, b\n\nc\td")
    studio.wait(lambda: studio.do("return at('field-texts').value") == "a, b\nc\td")
    assert studio.do(DROP, "empty.csv", "\n\n")
    studio.wait(lambda: studio.text("#error") == "empty.csv has no rows.")


# --- the keyboard alone ---


def test_everything_is_done_with_the_keyboard_alone(browser, studio):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys):
        ActionChains(browser).send_keys(*keys).perform()

    def go_to(selector, most=40):
        """Go on with the tab key until the focus, which must be seen, is on an element."""
        for _ in range(most):
            press(Keys.TAB)
            assert studio.do("return getComputedStyle(document.activeElement).outlineStyle") != "none"
            if studio.do("return document.activeElement.matches(arguments[0])", selector):
                return
        pytest.fail(f"the tab key does not lead to {selector}")

    go_to("#model")
    press("pairs")
    studio.wait(lambda: studio.do("return state.activity && state.current.id") == "pairs")
    go_to("#field-first")
    press("w25")
    go_to("#field-second")
    ActionChains(browser).send_keys("w5").key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    studio.wait_for_answer()
    assert "✓" in studio.text("#answer .items > li")
    go_to("#options summary")
    press(Keys.ENTER)
    go_to("#option-coverage")
    press("0.9", Keys.ENTER)
    studio.wait(lambda: "Label set" in studio.text("#answer"))
    go_to("#answer .items button")
    press(Keys.ENTER)
    studio.wait(lambda: studio.all(".explanation"))
    go_to("#languages input")
    press(Keys.ARROW_RIGHT)
    assert studio.do("return at('code').textContent").startswith("import json")
    go_to("#copy")
    press(Keys.SPACE)
    studio.wait(lambda: "opied" in studio.text("#status") or "selected" in studio.text("#status"))


# --- accessibility ---

VIEWS = {
    "classification": {"texts": f"{TEXTS}\nw6 w50 w51 w40 w41", "coverage": "0.9"},
    "pairs": {"first": "w25", "second": "w5"},
    "question-answering": {"question": "w5", "context": "w5 w10 w11 w25", "top": "3", "threshold": "-1e9"},
    "names": {"texts": "w5 w6 w30 w7"},
    "embedding": {"texts": TEXTS},
    "multiple_choice": {"context": "w5 w25 w9", "choices": "w6 w30\nw5 w31"},
    "masked_lm": {"texts": "w5 [MASK] w20\nw6"},
    "several": {"texts": "w5 w25"},
    "index": {"query": "captain w10"},
}
EVERYDAY = (("classification", WIDE, False), ("embedding", NARROW, True))
MODES = list(itertools.product(VIEWS, (WIDE, NARROW), (False, True)))


@pytest.mark.parametrize(("name", "width", "dark"), some_of(MODES, *EVERYDAY))
def test_no_view_breaks_the_rules_of_accessibility(browser, site, name, width, dark):
    axe = axe_source()
    studio = Studio(browser, site.url).open(width=width, dark=dark)
    studio.do("at('options').open = true")
    studio.pick(name, kind="index" if name == "index" else "model")
    studio.run(**VIEWS[name])
    explain = "const found = document.querySelector('#answer .items button'); found?.click(); return Boolean(found)"
    if studio.do(explain):
        studio.wait(lambda: studio.all(".explanation"))
    studio.do("at('json-details').open = true; showJson()")
    assert studio.violations(axe) == []
    studio.run(**{next(iter(VIEWS[name])): " "})
    assert studio.text("#error")
    assert studio.violations(axe) == []
    assert studio.fits()


def test_the_accessibility_check_finds_what_is_wrong(studio):
    axe = axe_source()
    studio.do("document.querySelector('label[for=model]').remove(); at('facts').style.color = '#999'")
    assert {"select-name", "color-contrast"} <= {name for name, _ in studio.violations(axe)}


def test_motion_is_left_out_where_it_is_not_wanted(browser, studio):
    studio.pick("classification")
    studio.run(texts="w5")
    read = "return getComputedStyle(document.querySelector('.bar span')).transitionDuration"
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    )
    assert studio.do(read) == "0s"
