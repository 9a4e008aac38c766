"use strict";

// --- elements ---

/** Make an element; texts among its children become text, never HTML. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made && !key.includes("-")) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function drawn(name, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const percent = (value) => `${(100 * value).toFixed(1)} %`;
const number = (value) => Number(value).toLocaleString("en", { maximumSignificantDigits: 3 });
const count = (value, one) => `${value.toLocaleString("en")} ${one}${value === 1 ? "" : "s"}`;
const shortened = (text, most = 80) => {
  const characters = Array.from(text);
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
};
const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

// --- files ---

/** Parse a table of separated values (RFC 4180); the separator is the one of , ; and tab that is first in its first row. */
function parseTable(content) {
  const text = content.replace(/^\uFEFF/, "");
  const separator = (text.match(/^(?:"(?:[^"]|"")*"|[^",;\t\r\n]*)([,;\t])/) ?? [])[1] ?? ",";
  const rows = [];
  let row = [], cell = "", quoted = false;
  const endRow = () => {
    row.push(cell);
    if (row.some((each) => each.trim())) rows.push(row);
    row = [], cell = "";
  };
  for (let place = 0; place < text.length; place++) {
    const character = text[place];
    if (quoted) {
      if (character !== '"') cell += character;
      else if (text[place + 1] === '"') cell += text[place++];
      else quoted = false;
    } else if (character === '"' && !cell) quoted = true;
    else if (character === separator) row.push(cell), cell = "";
    else if (character === "\n" || character === "\r") {
      if (character === "\r" && text[place + 1] === "\n") place++;
      endRow();
    } else cell += character;
  }
  if (cell || row.length) endRow();
  return rows;
}

// --- vectors ---

const dot = (one, other) => one.reduce((sum, value, place) => sum + value * other[place], 0);

function cosines(vectors) {
  const units = vectors.map((vector) => {
    const length = Math.sqrt(dot(vector, vector)) || 1;
    return vector.map((value) => value / length);
  });
  return units.map((one) => units.map((other) => dot(one, other)));
}

/** The first two principal components of vectors: a point for each, and the share of the variance of both. */
function principalComponents(vectors) {
  const size = vectors[0].length;
  const mean = vectors[0].map((_, place) => vectors.reduce((sum, each) => sum + each[place], 0) / vectors.length);
  const rows = vectors.map((each) => each.map((value, place) => value - mean[place]));
  const total = rows.reduce((sum, row) => sum + dot(row, row), 0);
  const directions = [], shares = [];
  for (let component = 0; component < 2; component++) {
    let direction = Array.from({ length: size }, (_, place) => Math.sin(1 + place * (component + 1)));
    let variance = 0;
    for (let round = 0; round < 200; round++) {
      for (const found of directions) {
        const along = dot(direction, found);
        direction = direction.map((value, place) => value - along * found[place]);
      }
      const next = new Array(size).fill(0);
      for (const row of rows) {
        const along = dot(row, direction);
        for (let place = 0; place < size; place++) next[place] += along * row[place];
      }
      const before = variance;
      variance = Math.sqrt(dot(next, next));
      if (variance < 1e-12) break;
      direction = next.map((value) => value / variance);
      if (Math.abs(variance - before) < 1e-9 * variance) break;
    }
    for (const found of directions) {
      const along = dot(direction, found);
      direction = direction.map((value, place) => value - along * found[place]);
    }
    directions.push(direction);
    shares.push(total > 1e-12 ? variance / total : 0);
  }
  const flat = (row, place) => (shares[place] > 1e-9 ? dot(row, directions[place]) : 0);
  return { points: rows.map((row) => [flat(row, 0), flat(row, 1)]), shares };
}

// --- requests as code ---

const KEY = "BOTHWAYS_API_KEY";
const PYTHON = new Map([[true, "True"], [false, "False"], [null, "None"]]);

function pythonValue(value) {
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each)}`).join(", ")}}`;
  }
  return PYTHON.get(value) ?? JSON.stringify(value);
}

/** A request in the words of other programs; the key is read from the environment, and never shown. */
const LANGUAGES = {
  curl(url, body, withKey) {
    const header = withKey ? [`-H "Authorization: Bearer $${KEY}"`] : [];
    const data = `-d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
    return [`curl -s ${url}`, "-H 'Content-Type: application/json'", ...header, data].join(" \\\n  ");
  },
  Python(url, body, withKey) {
    const header = withKey ? `, "Authorization": "Bearer " + os.environ["${KEY}"]` : "";
    return [
      `import json${withKey ? ", os" : ""}, urllib.request`,
      "",
      `body = ${pythonValue(body)}`,
      "request = urllib.request.Request(",
      `    ${JSON.stringify(url)},`,
      "    data=json.dumps(body).encode(),",
      `    headers={"Content-Type": "application/json"${header}},`,
      ")",
      "with urllib.request.urlopen(request) as response:",
      "    print(json.load(response))",
    ].join("\n");
  },
  JavaScript(url, body, withKey) {
    const header = withKey ? `, Authorization: \`Bearer \${process.env.${KEY}}\`` : "";
    return [
      `const response = await fetch(${JSON.stringify(url)}, {`,
      '  method: "POST",',
      `  headers: { "Content-Type": "application/json"${header} },`,
      `  body: JSON.stringify(${JSON.stringify(body)}),`,
      "});",
      "console.log(await response.json());",
    ].join("\n");
  },
};
