"use strict";

// --- parts of several views ---

const MOST_ITEMS = 100, MOST_ROWS = 30, MOST_POINTS = 500, MOST_LABELS = 8;
const HUES = 8;

/** A list of items of which the first are drawn; a button draws the others. */
function listed(items, draw) {
  const list = element("ol", { className: "items" });
  const rest = element("button", { type: "button" }, `Show all ${items.length.toLocaleString("en")}`);
  const add = (from, to) => {
    list.append(...items.slice(from, to).map((item, place) => element("li", {}, ...draw(item, from + place))));
  };
  add(0, MOST_ITEMS);
  if (items.length <= MOST_ITEMS) return list;
  rest.addEventListener("click", () => {
    rest.remove();
    add(MOST_ITEMS, items.length);
  });
  return element("div", {}, list, rest);
}

/** Bars of probabilities, as text too; the names in `chosen` get a tick. */
function bars(probabilities, chosen = []) {
  const rows = probabilities.map(([name, value]) => {
    const bar = element("span", { className: "bar", "aria-hidden": "true" }, element("span"));
    bar.firstChild.style.width = `${100 * Math.min(1, Math.max(0, value))}%`;
    const ticked = chosen.includes(name);
    const label = element("span", { className: "label" }, ticked ? "✓ " : "", name);
    if (ticked) label.append(element("span", { className: "hidden" }, " (chosen)"));
    return element("li", {}, label, bar, element("span", { className: "value" }, percent(value)));
  });
  const list = element("ul", { className: "bars" }, ...rows.slice(0, MOST_LABELS));
  if (rows.length <= MOST_LABELS) return list;
  const others = element("ul", { className: "bars" }, ...rows.slice(MOST_LABELS));
  const more = element("summary", {}, count(rows.length - MOST_LABELS, "further label"));
  return element("div", {}, list, element("details", {}, more, others));
}

/** A text in which places are marked, each with a note; places count UTF-16 units, as strings here do. */
function marked(text, spans) {
  const shown = element("p", { className: "text" });
  let end = 0;
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    if (span.start < end) continue;
    const mark = element("mark", { className: `hue${(span.hue ?? 0) % HUES}` }, text.slice(span.start, span.end));
    if (span.note) mark.append(element("small", {}, span.note));
    shown.append(text.slice(end, span.start), mark);
    end = span.end;
  }
  shown.append(text.slice(end));
  return shown;
}

const given = (text) => element("p", { className: "text given" }, text);
const note = (...text) => element("p", { className: "note" }, ...text);

function domain(prediction) {
  if (!("out_of_domain" in prediction)) return null;
  const score = `score ${number(prediction.out_of_domain_score)}`;
  if (!prediction.out_of_domain) return note(`Like the training texts (${score}).`);
  const flag = element("strong", {}, "⚠ Out of domain: ");
  return element("p", { className: "note flag" }, flag, `unlike the training texts (${score}).`);
}

function disagreement(prediction) {
  if (prediction.disagreement === undefined) return null;
  return note(`The members of the ensemble disagree: ${percent(prediction.disagreement)} decide otherwise.`);
}

// --- a prediction of each kind ---

/** Draw a prediction by its form, whatever model it is of. */
function prediction(found, context) {
  if (found.error) return [element("p", { className: "note flag" }, `⚠ ${found.error.message}`)];
  if ("spans" in found) return tags(found, context);
  if ("answers" in found) return answers(found, context);
  if ("fillings" in found) return fillings(found, context);
  if ("probabilities" in found) return labels(found, context);
  if ("value" in found) return values(found);
  if ("similarity" in found) return [element("p", { className: "number" }, number(found.similarity))];
  return [element("pre", {}, JSON.stringify(found, null, 1))];
}

function labels(found, context) {
  const many = Array.isArray(found.probabilities);
  const own = Object.entries(found.probabilities);  // of choices: by their places
  const pairs = many ? own.map(([place, value]) => [context.input[1][place], value]) : own;
  const chosen = found.labels ?? [many ? found.choice : pairs[0][0]];  // the most probable label is the first
  const set = found.label_set === undefined ? null : note(`Label set: ${found.label_set.join(", ") || "empty"}.`);
  const none = found.labels?.length === 0 ? note("None of the labels.") : null;
  return [none, bars(pairs, chosen), set, domain(found), disagreement(found)];
}

function values(found) {
  const { value, low, high, deviation } = found;
  const interval = low === undefined ? null : note(`Between ${number(low)} and ${number(high)}.`);
  const spread = deviation === undefined ? null : note(`The members of the ensemble deviate by ${number(deviation)}.`);
  return [element("p", { className: "number" }, number(value)), interval, spread];
}

function tags(found, { hueOf }) {
  const named = found.spans.map((span) => ({ ...span, tag: span.label }));
  const spans = named.length ? named : found.words.filter((word) => word.tag !== "O");
  const places = spans.map((span) => ({ ...span, hue: hueOf(span.tag), note: `${span.tag} ${percent(span.probability)}` }));
  return [marked(found.text, places), places.length ? null : note("No word has a tag."), disagreement(found)];
}

function answers(found, { input }) {
  const none = found.no_answer_probability ?? null;
  const about = (each, place) => ({ ...each, hue: place, note: `${place + 1}: ${percent(each.probability)}` });
  const spans = found.answer === null ? [] : found.answers.map(about);
  return [
    found.answer === null ? note("The context has no answer.") : element("p", { className: "number" }, found.answer),
    marked(input[1], spans),
    note(`This is right with a probability of ${percent(found.probability)}.`),
    none === null ? null : note(`There is no answer with a probability of ${percent(none)}.`),
    disagreement(found),
  ];
}

const MASK = /\[MASK\]|<mask>/;

function fillings(found, { input }) {
  const parts = input.split(MASK), best = found.fillings[0];
  const shown = element("p", { className: "text" }, parts[0]);
  if (best && parts.length === best.words.length + 1) {
    best.words.forEach((word, place) => {
      const alone = found.masks[place].find((each) => each.word === word);
      const about = `${best.words.length > 1 ? `${place + 1}: ` : ""}${percent((alone ?? best).probability)}`;
      shown.append(element("mark", { className: `hue${place % HUES}` }, word, element("small", {}, about)), parts[place + 1]);
    });
  } else shown.textContent = best ? best.text : input;
  const masks = found.masks.flatMap((words, place) => [
    element("h3", {}, found.masks.length > 1 ? `Mask ${place + 1}` : "Words for the mask"),
    bars(words.map((each) => [each.word, each.probability]), [best?.words[place]]),
  ]);
  return [shown, ...masks];
}

/** The contributions of words to a score: shades for the eye, underlines for the sign, and the largest as numbers. */
function attribution(found, texts) {
  const largest = Math.max(...found.words.map((word) => Math.abs(word.weight ?? 0)), 1e-12);
  const shown = texts.map((text, part) => {
    const line = element("p", { className: "text" });
    let end = 0;
    for (const word of found.words.filter((each) => each.part === part)) {
      const weight = word.weight ?? 0;
      const kind = { className: weight < 0 ? "against" : "for", title: `${word.word}: ${number(weight)}` };
      const mark = element("span", kind, text.slice(word.start, word.end));
      mark.style.setProperty("--strength", (0.75 * Math.abs(weight)) / largest);
      line.append(text.slice(end, word.start), mark);
      end = word.end;
    }
    line.append(text.slice(end));
    return line;
  });
  const strongest = found.words.filter((word) => word.weight);
  strongest.sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
  const signed = (value) => `${value > 0 ? "+" : "−"}${number(Math.abs(value))}`;
  const listing = strongest.slice(0, 10).map((word) => `${word.word} ${signed(word.weight)}`);
  return element(
    "div", { className: "explanation" },
    element("h3", {}, `Contributions to the ${found.score_of} (${number(found.score)})`),
    ...shown,
    note("Solid line: for it; dotted line: against it. Strongest: ", listing.join(", "), `. By ${found.method}.`),
  );
}

// --- views of other routes ---

function similarities(texts, vectors) {
  const rows = vectors.slice(0, MOST_ROWS), table = cosines(rows);
  const apart = table.flatMap((row, one) => row.filter((_, other) => other !== one));
  const low = Math.min(...apart, 1), high = Math.max(...apart, low + 1e-9);
  const body = table.map((row, one) => {
    const cells = row.map((value, other) => {
      const cell = element("td", {}, value.toFixed(2).replace("-0.00", "0.00"));
      cell.style.setProperty("--strength", one === other ? 0 : 0.7 * ((value - low) / (high - low)));
      return cell;
    });
    const name = element("th", { scope: "row" }, `${one + 1} `, element("span", {}, shortened(texts[one], 60)));
    return element("tr", {}, name, ...cells);
  });
  const titles = ["Text", ...rows.map((_, place) => place + 1)];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
  const matrix = element("table", { className: "matrix" }, element("thead", {}, head), element("tbody", {}, ...body));
  const cut = vectors.length > MOST_ROWS ? note(`Of the first ${MOST_ROWS} of ${count(vectors.length, "text")}.`) : null;
  return [
    element("h3", { id: "matrix-title" }, "Similarity"), cut,
    element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-labelledby": "matrix-title" }, matrix),
    note("Cosines; the stronger the colour, the more alike."),
  ];
}

/** Draw the texts on a plane; labels are moved down where they would lie on others. */
function mapOf(texts, vectors, width) {
  const { points, shares } = principalComponents(vectors.slice(0, MOST_POINTS));
  const height = Math.round(Math.min(440, Math.max(240, width * 0.6))), margin = 24;
  const scale = (axis, size) => {
    const all = points.map((point) => point[axis]), low = Math.min(...all), span = Math.max(...all) - low || 1;
    return (value) => margin + ((value - low) / span) * (size - 2 * margin);
  };
  const x = scale(0, width), y = scale(1, height), named = width >= 560 && points.length <= 40;
  const placed = points
    .map((point, place) => ({ place, x: x(point[0]), y: height - y(point[1]) }))
    .sort((one, other) => one.y - other.y);
  const taken = placed.map((dot) => ({ from: dot.x - 6, to: dot.x + 6, line: dot.y + 4 }));
  const shapes = placed.map((dot) => {
    const words = named ? `${dot.place + 1} ${shortened(texts[dot.place], 28)}` : String(dot.place + 1);
    const left = dot.x > width / 2, length = 7 * words.length;
    const from = left ? dot.x - 9 - length : dot.x + 9, to = from + length;
    const clash = (line) => taken.find((other) => from < other.to && to > other.from && Math.abs(line - other.line) < 12);
    let line = dot.y + 4;
    for (let other = clash(line); other && line < height - 12; other = clash(line)) line = other.line + 12.5;
    taken.push({ from, to, line });
    const label = drawn("text", { x: dot.x + (left ? -9 : 9), y: line, "text-anchor": left ? "end" : "start" }, words);
    const circle = drawn("circle", { cx: dot.x, cy: dot.y, r: 5 });
    return drawn("g", {}, drawn("title", {}, texts[dot.place]), circle, ...(points.length <= 60 ? [label] : []));
  });
  const about = `Map of ${count(points.length, "text")} by the first two principal components of their vectors`;
  return [
    element("h3", {}, "Map"),
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "map", role: "img", "aria-label": about }, ...shapes),
    note(`Principal components: ${percent(shares[0])} of the variance to the right, ${percent(shares[1])} up.`),
    points.length < vectors.length ? note(`Of the first ${MOST_POINTS} texts.`) : null,
  ];
}

/** A text in which the words of a query are marked; longer words also where they begin another one. */
function highlighted(text, query) {
  const wanted = (query.toLocaleLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? []).map((word) => word.normalize());
  const spans = [...text.matchAll(/[\p{L}\p{M}\p{N}]+/gu)].flatMap((match) => {
    const word = match[0].toLocaleLowerCase().normalize();
    const hit = wanted.some((each) => word === each || (each.length > 3 && word.startsWith(each)));
    return hit ? [{ start: match.index, end: match.index + match[0].length }] : [];
  });
  return marked(text, spans);
}

function hits(found, query) {
  if (!found.length) return [note("No text was found.")];
  return [listed(found, (hit) => {
    const fields = Object.entries(hit.fields ?? {}).map(([name, value]) => `${name}: ${value}`);
    const about = [`Score ${number(hit.score)}`, `id ${hit.id}`, ...fields];
    return [highlighted(hit.text ?? "", query), note(about.join(" · "))];
  })];
}

function ranking(results, documents) {
  return [listed(results, (result) => {
    const about = `Score ${number(result.relevance_score)} · document ${result.index + 1}`;
    return [given(documents[result.index]), note(about)];
  })];
}

function judgement(answer) {
  const { probability } = answer.judgements[0];
  return [element("p", { className: "text" }, answer.question), bars([["yes", probability], ["no", 1 - probability]])];
}
