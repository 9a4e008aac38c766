"use strict";

// What can be asked of a model or an index: the fields of a form, the request, and how its answer is drawn.

const texts = { name: "texts", label: "Texts, one per line", lines: true, file: true };
const EXAMPLE = [
  "The striker scored twice in the final minutes.",
  "The goalkeeper saved a penalty before half time.",
  "The central bank raised interest rates again.",
  "Shares fell after the company cut its forecast.",
  "A new telescope took pictures of a distant galaxy.",
  "Researchers trained a faster model for speech.",
].join("\n");
const query = { name: "query", label: "Query", short: true };
const context = { name: "context", label: "Context" };

const predicts = (inputsOf, more) => ({
  path: "v1/predict",
  nested: true,
  explains: true,
  body: (values) => {
    const inputs = inputsOf(values);
    return { inputs, offsets: "utf16", ...(inputs.length > 1 ? { errors: "per_item" } : {}) };
  },
  draw: drawPredictions,
  ...more,
});

const ACTIVITIES = {
  label: predicts((values) => values.texts, { title: "Label texts", fields: [texts], example: { texts: EXAMPLE } }),
  tag: predicts((values) => values.texts, {
    title: "Mark names in texts", fields: [texts],
    example: { texts: "Angela Merkel met Emmanuel Macron in Paris.\nThe United Nations have an office in Geneva." },
  }),
  fill: predicts((values) => values.texts, {
    title: "Fill masks", explains: false, fields: [{ ...texts, label: "Texts with [MASK], one per line" }],
    example: { texts: "Paris is the [MASK] of France.\nShe poured the [MASK] into a cup." },
  }),
  pair: predicts((values) => [[values.first, values.second]], {
    title: "Label a pair", fields: [{ name: "first", label: "First text" }, { name: "second", label: "Second text" }],
    example: { first: "A man is playing a guitar.", second: "Somebody makes music." },
  }),
  answer: predicts((values) => [[values.question, values.context]], {
    title: "Answer a question", fields: [{ name: "question", label: "Question", short: true }, context],
    example: {
      question: "Who won?",
      context: "The final was played in Santa Clara. The Broncos beat the Panthers by 24 to 10.",
    },
  }),
  choose: predicts((values) => [[values.context, values.choices]], {
    title: "Choose an ending", fields: [context, { name: "choices", label: "Choices, one per line", lines: true }],
    example: { context: "She opened the fridge and", choices: "took out the milk.\nflew away." },
  }),
  embed: {
    title: "Compare texts", path: "v1/embeddings", fields: [texts], example: { texts: EXAMPLE },
    options: (model) => ({
      ...(model.prompts?.length && { prompt_name: { enum: model.prompts, description: "Prompt before each text." } }),
      dimensions: { type: "integer", description: `Keep the first dimensions only, of ${model.dimensions}.` },
    }),
    body: (values) => ({ input: values.texts }),
    draw: drawVectors,
  },
  rerank: {
    title: "Rank documents", path: "v1/rerank",
    fields: [query, { ...texts, label: "Documents, one per line" }],
    example: { query: "football", texts: EXAMPLE },
    options: () => ({ top_n: { type: "integer", description: "Number of documents to show. Default: all." } }),
    body: (values) => ({ query: values.query, documents: values.texts }),
    draw: (answer, { body }) => ranking(answer.results, body.documents),
  },
  judge: {
    title: "Judge an answer", path: "v1/judge",
    fields: [
      query,
      { name: "passage", label: "Passage", optional: true },
      { name: "reply", label: "Answer", optional: true },
    ],
    example: { query: "When was the tower built?", passage: "The tower was built in 1889.", reply: "In 1889." },
    body: (values) => ({ inputs: [{ query: values.query, passage: values.passage, answer: values.reply }] }),
    draw: judgement,
  },
  search: {
    title: "Search", path: "v1/search", whole: true, fields: [query],
    options: () => ({
      mode: {
        enum: ["hybrid", "dense", "lexical"], default: "hybrid",
        description: "By meaning and words, by meaning, or by words.",
      },
      top: { type: "integer", default: 10, description: "Number of texts to find." },
      filters: {
        type: "array",
        description: "Conditions on stored fields, with commas between them: field=value, field>=number.",
      },
    }),
    body: (values) => values,
    draw: (answer, { body }) => hits(answer.hits, body.query),
  },
};

const TASKS = {
  classification: ["label"], pairs: ["pair"], tagging: ["tag"], "question-answering": ["answer"],
  multiple_choice: ["choose"], masked_lm: ["fill"], embedding: ["embed"],
};

function activitiesOf(served) {
  if (served.object === "index") return ["search"];
  const inputs = served.schemas?.input ?? {}, forms = inputs.anyOf ?? [inputs];
  const own = TASKS[served.task] ?? [forms.some((form) => form.type === "string") ? "label" : "pair"];
  return [...own, ...["rerank", "judge"].filter((ability) => served.abilities.includes(ability))];
}
