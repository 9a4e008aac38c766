"use strict";

const at = (id) => document.getElementById(id);
const STORED_KEY = "bothways-api-key", MOST_BYTES = 20e6, MOST_JSON = 100_000;

/** What went wrong, in words for a person. */
class Problem extends Error {
  constructor(message, status = 0, wait = 1) {
    super(message);
    Object.assign(this, { status, wait });
  }
}

// --- asking the server ---

const state = { served: [], current: null, activity: null, sent: null, answer: null, running: null };

function storedKey() {
  return sessionStorage.getItem(STORED_KEY) ?? "";
}

async function ask(path, body, signal) {
  const key = storedKey(), headers = body ? { "Content-Type": "application/json" } : {};
  if (key) headers.Authorization = `Bearer ${key}`;
  const begun = performance.now();
  let response, text;
  try {
    const sent = body ? { method: "POST", body: JSON.stringify(body) } : {};
    response = await fetch(path, { ...sent, headers, signal, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. See whether it still runs, and try again.");
  }
  let content = null;
  try {
    content = JSON.parse(text);
  } catch {
    if (response.ok) throw new Problem("The answer is not JSON: something between this page and the server changed it.");
  }
  if (response.ok) return { content, headers: response.headers, milliseconds: performance.now() - begun };
  const message = content?.error?.message ?? `${response.status} ${response.statusText}`;
  throw new Problem(`The server answered: ${message}`, response.status, Number(response.headers.get("retry-after") ?? 1));
}

function show(problem) {
  if (problem.name === "AbortError") return;
  if (!(problem instanceof Problem)) console.error(problem);
  const refused = problem.status === 401;
  const asked = storedKey()
    ? "The server does not know this API key. Correct it above."
    : "This server asks for an API key. Give one above.";
  at("error").textContent = refused ? asked : problem.message;
  at("status").textContent = "";
  at("key").setAttribute("aria-invalid", String(refused));
  if (refused) at("key").focus();
}

async function loadModels() {
  at("error").textContent = "";
  try {
    const { content } = await ask("v1/models");
    at("key").setAttribute("aria-invalid", "false");
    state.served = [...content.data, ...content.indexes];
    const options = (all) => all.map((each) => element("option", { value: `${each.object} ${each.id}` }, each.id));
    const groups = [["Models", content.data], ["Indexes", content.indexes]].filter(([, all]) => all.length);
    at("model").replaceChildren(...groups.map(([label, all]) => element("optgroup", { label }, ...options(all))));
    await choose();
    at("model").disabled = at("run").disabled = false;
    const indexes = content.indexes.length === 1 ? "1 search index" : `${content.indexes.length} search indexes`;
    at("status").textContent = `${count(content.data.length, "model")}, ${indexes}.`;
  } catch (problem) {
    if (problem.status !== 503) return show(problem);
    at("status").textContent = "The models are being opened …";
    setTimeout(loadModels, 1000 * problem.wait);
  }
}

// --- the form ---

async function choose() {
  state.activity = null;  // until the form is that of the model
  const [kind, ...name] = at("model").value.split(" ");
  const served = state.served.find((each) => each.object === kind && each.id === name.join(" "));
  if (served.object === "model" && !served.schemas) {
    Object.assign(served, (await ask(`v1/models/${encodeURIComponent(served.id)}`)).content);
  }
  if (at("model").value !== `${served.object} ${served.id}`) return;
  state.current = served;
  at("facts").textContent = factsOf(served);
  const activities = activitiesOf(served);
  at("activity").replaceChildren(...activities.map((each) => element("option", { value: each }, ACTIVITIES[each].title)));
  at("activity-field").hidden = activities.length < 2;
  prepare();
}

function factsOf(served) {
  if (served.object === "index") return `Search index of ${count(served.texts, "text")}.`;
  const names = served.labels.length ? `Labels: ${shortened(served.labels.join(", "), 160)}.` : "";
  const size = served.dimensions ? `, vectors of ${served.dimensions}` : "";
  const reads = `${served.task.replaceAll("_", " ")}, reads ${count(served.max_tokens, "token")} at a time`;
  return `${reads}${size}, ${served.precision} on ${served.device} (${served.engine}). ${names}`;
}

/** Show the fields of the chosen activity; what was written stays where a field has the same name. */
function prepare() {
  state.running?.abort();
  const activity = (state.activity = ACTIVITIES[at("activity").value]);
  const before = new Map([...at("fields").querySelectorAll("[name]")].map((each) => [each.name, each.value]));
  at("fields").replaceChildren(...activity.fields.map((field) => {
    const id = `field-${field.name}`;
    const box = field.short ? element("input", { type: "text" }) : element("textarea", { rows: field.lines ? 7 : 4 });
    Object.assign(box, { id, name: field.name, value: before.get(field.name) ?? "" });
    return element("p", { className: "field" }, element("label", { htmlFor: id }, field.label), box);
  }));
  at("file").hidden = !activity.fields.some((field) => field.file);
  at("example").hidden = !activity.example;
  const own = activity.nested ? state.current.schemas?.options?.properties : activity.options?.(state.current);
  const properties = activity.whole ? own : { ...own, on_overflow: OVERFLOW };
  at("option-fields").replaceChildren(...Object.entries(properties).map(optionField));
  clearAnswer();
}

const OVERFLOW = {
  enum: ["window", "error", "truncate", "truncate_left"],
  description: "Texts that are too long: read in windows, refused, or cut.",
};

function optionField([name, schema]) {
  const id = `option-${name}`, kinds = [schema.type].flat(), standard = schema.default ?? "";
  const kind = ["array", "boolean"].find((each) => kinds.includes(each)) ?? (schema.enum ? "text" : "number");
  const choices = kind === "boolean" ? ["true", "false"] : schema.enum?.filter((each) => each !== null);
  const none = element("option", { value: "" }, standard === "" ? "default" : `default (${standard})`);
  const box = choices
    ? element("select", {}, none, ...choices.map((each) => element("option", {}, each)))
    : element("input", { type: "text", inputMode: kind === "array" ? "text" : "decimal", placeholder: standard });
  Object.assign(box, { id, name });
  box.dataset.kind = kind;
  box.setAttribute("aria-describedby", `${id}-about`);
  const about = element("small", { id: `${id}-about` }, (schema.description ?? "").replaceAll("`", ""));
  return element("p", { className: "field" }, element("label", { htmlFor: id }, name.replaceAll("_", " ")), box, about);
}

const READ = {
  array: (value) => value.split(",").map((each) => each.trim()).filter(Boolean),
  boolean: (value) => value === "true",
  number: (value) => (Number.isNaN(Number(value)) ? value : Number(value)),
  text: (value) => value,
};

/** The request of what stands in the form. */
function request() {
  const { activity, current } = state, values = {}, options = {};
  for (const field of activity.fields) {
    const value = at(`field-${field.name}`).value;
    values[field.name] = field.lines ? linesOf(value) : value.trim();
    if (!values[field.name].length && !field.optional) {
      at(`field-${field.name}`).focus();
      throw new Problem(`Write something into “${field.label}”.`);
    }
  }
  for (const box of at("option-fields").querySelectorAll("[name]")) {
    if (box.value.trim()) options[box.name] = READ[box.dataset.kind](box.value.trim());
  }
  const { on_overflow, ...own } = options;
  const where = current.object === "index" ? { index: current.id } : { model: current.id };
  const placed = activity.nested ? (Object.keys(own).length ? { options: own } : {}) : own;
  const body = { ...where, ...activity.body(values), ...placed, ...(on_overflow && { on_overflow }) };
  return { path: activity.path, body };
}

// --- answers ---

function clearAnswer() {
  for (const id of ["error", "status"]) at(id).textContent = "";
  for (const id of ["warnings", "answer"]) at(id).replaceChildren();
  at("request").hidden = true;
}

async function run(event) {
  event?.preventDefault();
  if (!state.activity) return choose().catch(show);
  state.running?.abort();
  const running = (state.running = new AbortController()), activity = state.activity;
  clearAnswer();
  try {
    const sent = (state.sent = request());
    at("status").textContent = "Computing …";
    const reply = await ask(sent.path, sent.body, running.signal);
    if (state.running !== running) return;
    at("answer").replaceChildren(...activity.draw(reply.content, sent).filter(Boolean));
    const warnings = reply.content.warnings ?? reply.content.meta?.warnings ?? [];
    at("warnings").replaceChildren(...warnings.map((each) => element("li", {}, `⚠ ${each}.`)));
    at("status").textContent = timings(reply);
    state.answer = reply.content;
    at("request").hidden = false;
    showCode();
    showJson();
    bringUp();
  } catch (problem) {
    if (state.running !== running) return;
    show(problem);
    bringUp();
  }
}

/** Scroll to the answer where it is below the screen, as on a phone. */
function bringUp() {
  const title = at("answer-title");
  if (title.getBoundingClientRect().top > 0.8 * innerHeight) title.scrollIntoView();
}

function timings({ content, headers, milliseconds }) {
  const part = (name) => `${headers.get(name) ?? "?"} ms`;
  const tokens = content.usage?.tokens ?? content.usage?.total_tokens ?? 0;
  const parts = `${part("x-queue-time")} in the queue, ${part("x-inference-time")} computing`;
  const whole = `${count(tokens, "token")} in ${part("x-total-time")}`;
  return `${whole}: ${parts}; ${Math.round(milliseconds)} ms until it was here.`;
}

function calibrationNote(body) {
  const { calibrated } = state.current;
  if (body.options?.calibrated === false) return note("The probabilities are not calibrated, as asked.");
  if (calibrated === undefined) return null;
  return note(calibrated ? "The probabilities are calibrated." : "The probabilities are not calibrated.");
}

function drawPredictions(answer, { body }) {
  const names = [...new Set(state.current.labels.map((label) => label.replace(/^[A-Z]-/, "")))];
  const hueOf = (tag) => Math.max(0, names.indexOf(tag.replace(/^[A-Z]-/, "")));
  const model = state.current;
  const explains = state.activity.explains && (model.engine === "torch" || model.abilities.includes("explain"));
  const listing = listed(answer.predictions, (found, place) => {
    const input = body.inputs[place], several = model.task === "multitask" && !found.error;
    const parts = several ? Object.entries(found) : [[null, found]];
    const shown = typeof input === "string" && !parts.some(([, part]) => "spans" in part || "fillings" in part);
    const drawn = parts.flatMap(([task, part]) => [
      task && element("h3", {}, task),
      ...prediction(part, { input, hueOf }),
      explains && !part.error && element("div", {}, explainButton(model, input, task, place)),
    ]);
    return [shown && given(input), ...drawn].filter(Boolean);
  });
  return [calibrationNote(body), listing];
}

function explainButton(model, input, task, place) {
  const words = task ? `Explain ${task}` : "Explain";
  const button = element("button", { type: "button", "aria-label": `${words}, input ${place + 1}` }, words);
  button.addEventListener("click", async () => {
    at("error").textContent = "";
    at("status").textContent = "Explaining …";
    try {
      const reply = await ask("v1/explain", { model: model.id, input, offsets: "utf16", ...(task ? { task } : {}) });
      const { explanation } = reply.content;
      button.replaceWith(attribution(explanation, [input].flat(2)));
      at("status").textContent = `Explained the ${explanation.score_of} in ${reply.headers.get("x-total-time")} ms.`;
    } catch (problem) {
      show(problem);
    }
  });
  return button;
}

function drawVectors(answer, { body }) {
  const vectors = answer.data.map((each) => each.embedding), found = body.input;
  if (vectors.length < 2) return [note(`A vector of ${vectors[0].length} numbers. Give two texts or more to compare them.`)];
  const width = Math.max(260, at("answer").clientWidth);
  return [...similarities(found, vectors), ...mapOf(found, vectors, width)];
}

// --- code ---

function showCode() {
  const language = document.querySelector("#languages input:checked").value;
  const url = new URL(state.sent.path, document.baseURI).href;
  at("code").textContent = LANGUAGES[language](url, state.sent.body, Boolean(storedKey()));
}

function showJson() {
  if (!at("json-details").open) return;
  const shown = JSON.stringify(state.answer, null, 1);
  at("json").textContent = shown.length > MOST_JSON ? `${shown.slice(0, MOST_JSON)}\n… (cut)` : shown;
}

async function copyCode() {
  try {
    await navigator.clipboard.writeText(at("code").textContent);
    at("status").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(at("code"));
    at("status").textContent = document.execCommand("copy") ? "Copied." : "The code is selected: copy it with your keyboard.";
  }
}

// --- files ---

const file = { rows: [] };

async function readFile(chosen) {
  if (!chosen) return;
  at("error").textContent = "";
  if (chosen.size > MOST_BYTES) {
    return show(new Problem(`${chosen.name} has more than ${MOST_BYTES / 1e6} MB: choose a smaller file.`));
  }
  const bytes = await chosen.arrayBuffer();
  let content;
  try {
    content = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    content = new TextDecoder("windows-1252").decode(bytes);
  }
  const plain = /\.txt$/i.test(chosen.name);
  file.rows = plain ? linesOf(content).map((line) => [line]) : parseTable(content);
  if (!file.rows.length) return show(new Problem(`${chosen.name} has no rows.`));
  at("names").checked = !plain;
  at("column-row").hidden = false;
  listColumns();
}

function listColumns() {
  const named = at("names").checked, size = Math.max(...file.rows.map((row) => row.length));
  const titles = Array.from({ length: size }, (_, place) => (named && file.rows[0][place]?.trim()) || `column ${place + 1}`);
  at("column").replaceChildren(...titles.map((title, place) => element("option", { value: place }, title)));
  useColumn();
}

/** Put a column into the box of texts; line breaks in a cell become spaces, since each line there is a text. */
function useColumn() {
  const rows = file.rows.slice(at("names").checked ? 1 : 0), column = at("column").value;
  const kept = rows.map((row) => (row[column] ?? "").replace(/\s*[\r\n]+\s*/g, " ").trim()).filter(Boolean);
  at("field-texts").value = kept.join("\n");
  at("status").textContent = `${count(kept.length, "text")} from the file.`;
}

// --- events ---

for (const value of Object.keys(LANGUAGES)) {
  const button = element("input", { type: "radio", name: "language", value, checked: value === "curl", onchange: showCode });
  at("languages").append(element("label", {}, button, value));
}
at("key").value = storedKey();
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  if (/[^\x21-\x7e]/.test(key)) return show(new Problem("An API key has letters, digits and signs of ASCII only."));
  sessionStorage.setItem(STORED_KEY, key);
  loadModels();
});
at("model").addEventListener("change", () => choose().catch(show));
at("activity").addEventListener("change", prepare);
at("form").addEventListener("submit", run);
at("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
});
at("example").addEventListener("click", () => {
  for (const [name, value] of Object.entries(state.activity.example)) at(`field-${name}`).value = value;
});
at("csv").addEventListener("change", () => readFile(at("csv").files[0]));
at("names").addEventListener("change", listColumns);
at("column").addEventListener("change", useColumn);
at("form").addEventListener("dragover", (event) => {
  if (event.dataTransfer.types.includes("Files")) event.preventDefault();
});
at("form").addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  if (!at("file").hidden) readFile(event.dataTransfer.files[0]);
});
at("json-details").addEventListener("toggle", showJson);
at("copy").addEventListener("click", copyCode);
loadModels();
