// The page: an editor, the diagnostics beside it, and the views of the program that Python computes in a worker.
import { autocompletion } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { bracketMatching } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, EditorView, drawSelection, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import examples from "./examples.json";
import { language } from "./language.js";

const $ = (id) => document.getElementById(id);
const DELAY = 150;
const VIEWS = {
  cxx: "C++",
  graph: "Graph",
  optimised: "Optimised graph",
  explain: "Explain",
  gradient: "Gradient",
  layout: "Layouts",
};

// The worker

const waiting = new Map();
let count = 0;
let isReady = false;
let failed = null;  // the state of the page in which Python failed
let worker = started();

function started() {
  const made = new Worker("worker.js", { type: "module" });
  made.onmessage = ({ data }) => {
    if ("ready" in data) {
      isReady = data.ready;
      if (isReady) refresh();
      else say(`Python could not be loaded: ${data.error}`);
      return;
    }
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if ("error" in data) reject(new Error(data.error));
    else resolve(data.found);
  };
  made.onerror = (event) => say(`The worker failed: ${event.message}`);
  return made;
}

/** Load Python again: after a failure, such as a full stack, its state is unknown. */
function restart() {
  worker.terminate();
  waiting.clear();
  isReady = false;
  failed = location.hash;
  worker = started();
}

function ask(method, values) {
  count += 1;
  const id = count;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, method, arguments: values });
  });
}

// The state, which the URL holds

function fill(select, options) {
  for (const [name, title] of options) select.add(new Option(title, name));
}

function decode(hash) {
  try {
    const bytes = Uint8Array.from(atob(hash.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return {};
  }
}

function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

fill($("example"), [["", "..."], ...examples.programs.map((each) => [each.name, each.title])]);
fill($("operation"), examples.operations.map((name) => [name, name]));
fill($("arch"), examples.targets.map(([name, title]) => [name, title]));
fill($("dtype"), examples.types.map((name) => [name, name]));
const START = { operation: "gemm", arch: "sm90", dtype: "f16", view: "cxx", layout: "(8,(2,4)):(8,(1,2))" };
let view;
let layout;

/** Set the menus, the view and the layout from the URL, and return its program, if it holds one. */
function restore() {
  const state = { ...START, ...decode(location.hash.slice(1)) };
  for (const id of ["operation", "arch", "dtype"]) {
    const known = [...$(id).options].some((each) => each.value === state[id]);
    $(id).value = known ? state[id] : START[id];
  }
  view = state.view in VIEWS ? state.view : START.view;
  layout = typeof state.layout === "string" ? state.layout : START.layout;
  return typeof state.text === "string" ? state.text : null;
}

const first = restore() ?? examples.programs[0].text;

const text = () => editor.state.doc.toString();
const program = () => ({ text: text(), operation: $("operation").value });
const typed = () => ({ ...program(), dtype: $("dtype").value });
const targeted = () => ({ ...typed(), arch: $("arch").value });

// The editor

const link = StateEffect.define();
const linked = StateField.define({
  create: () => Decoration.none,
  update(marks, transaction) {
    let found = marks.map(transaction.changes);
    for (const effect of transaction.effects) {
      if (effect.is(link)) {
        const place = effect.value;
        found = place && place.to > place.from && place.to <= transaction.newDoc.length
          ? Decoration.set([Decoration.mark({ class: "linked" }).range(place.from, place.to)])
          : Decoration.none;
      }
    }
    return found;
  },
  provide: (field) => EditorView.decorations.from(field),
});

async function completions(context) {
  const word = context.matchBefore(/[\w%/]*/);
  if (!isReady || (word.from === word.to && !context.explicit)) return null;
  const found = await ask("complete_at", { ...program(), offset: context.pos });
  const options = found.completions.map((each) => ({ ...each, ...(each.info && { info: () => markdown(each.info) }) }));
  return { from: word.from, options, validFor: /^\w*$/ };
}

const hover = hoverTooltip(async (_, position) => {
  if (!isReady) return null;
  const found = await ask("describe_at", { ...program(), offset: position });
  if (!found.text) return null;
  return { pos: found.from, end: found.to, create: () => ({ dom: markdown(found.text) }) };
});

const editor = new EditorView({
  parent: $("editor"),
  state: EditorState.create({
    doc: first,
    extensions: [
      lineNumbers(), history(), drawSelection(), bracketMatching(), lintGutter(), linked, hover, language(),
      autocompletion({ override: [completions] }),
      keymap.of([{ key: "Mod-Shift-f", run: () => (format(), true) }, ...defaultKeymap, ...historyKeymap]),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": "Program", spellcheck: "false" }),
      EditorView.theme({ "&": { color: "var(--ink)" },
        "& .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "var(--selection) !important" },
        ".cm-gutters": { background: "transparent", color: "var(--quiet)",
        border: "0" }, ".cm-cursor": { borderLeftColor: "var(--ink)" }, ".cm-tooltip": { background: "var(--paper)",
        color: "var(--ink)", border: "1px solid var(--line)" } }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) {
          nameExample();
          schedule();
        }
        if (update.selectionSet) markLines(update.state.selection.main.head);
      }),
    ],
  }),
});

/** Return Markdown of hovers and of the diagnostics' pages: headings, paragraphs, lists, and code in fences. */
function markdown(source) {
  const box = document.createElement("div");
  source.split(/```[\w ]*\n?/).forEach((part, index) => {
    if (index % 2) box.append(element("pre", part.trimEnd()));
    else box.append(...part.split("\n\n").map((each) => each.trim()).filter(Boolean).map(block));
  });
  return box;
}

function block(source) {
  if (source.startsWith("# ")) return prose("h2", source.slice(2));
  if (!source.startsWith("- ")) return prose("p", source);
  const list = document.createElement("ul");
  list.append(...source.slice(2).split("\n- ").map((each) => prose("li", each)));
  return list;
}

/** Return an element of words, and of code in back quotes. */
function prose(name, source) {
  const made = document.createElement(name);
  made.append(...source.split("`").map((part, index) => (index % 2 ? element("code", part) : part)));
  return made;
}

/** Show in the menu which example the program is. */
function nameExample() {
  $("example").value = examples.programs.find((each) => each.text === text())?.name ?? "";
}

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = content;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Results

let timer;
let round = 0;
let links = [];
let whole = "";

function schedule() {
  clearTimeout(timer);
  timer = setTimeout(refresh, DELAY);
}

const say = (message) => { $("status").textContent = message; };

async function refresh() {
  keep();
  if (!isReady || location.hash === failed) return;
  failed = null;
  round += 1;
  try {
    await compute(round);
  } catch (error) {
    say(`Python failed: ${error.message.split("\n")[0]}. Change the program to go on.`);
    restart();
  }
}

async function compute(mine) {
  const begun = performance.now();
  const checked = await ask("check", typed());
  if (mine !== round) return;
  showProblems(checked);
  const stale = !checked.ok && view !== "layout";  // the panel and the signature show the last right program
  for (const each of ["panel", "signature"]) $(each).classList.toggle("stale", stale);
  if (stale) {
    $("download").disabled = true;
    say("The program has mistakes.");
    return;
  }
  $("signature").textContent = checked.signature ?? "";
  say("Computing ...");
  const found = await ask(...request());
  if (mine !== round) return;
  if (!found.ok && view !== "layout") showProblems(found);
  show(found);
  say(`Ready in ${Math.round(performance.now() - begun)} ms.`);
}

function request() {
  switch (view) {
    case "graph": return ["graph", { ...typed(), stage: "dag" }];
    case "optimised": return ["graph", { ...typed(), stage: "optimised" }];
    case "explain": return ["explain", targeted()];
    case "gradient": return ["gradient", typed()];
    case "layout": return ["layout", { layout }];
    default: return ["cxx", targeted()];
  }
}

/** Keep the state in the URL. */
function keep() {
  const state = { ...targeted(), view, ...(view === "layout" ? { layout } : {}) };
  window.history.replaceState(null, "", `#${encode(state)}`);
}

function showProblems(found) {
  $("problems").replaceChildren(...found.diagnostics.map((each) => {
    const item = element("li", "", { class: each.severity });
    const code = element("button", each.code, { title: "Explain" });
    code.onclick = () => explain(each.code);
    const place = element("button", "Go to it", { title: "Select the place in the program" });
    place.onclick = () => select(each);
    item.append(code, prose("span", ` ${each.message} `), ...(each.to > each.from ? [place] : []));
    for (const line of [each.help && `help: ${each.help}`, ...each.notes].filter(Boolean)) item.append(prose("p", line));
    return item;
  }));
  const length = editor.state.doc.length;
  const marks = found.diagnostics.map((each) => ({
    from: Math.min(each.from, length),
    to: Math.min(Math.max(each.to, each.from), length),
    severity: each.severity,
    message: `${each.code}: ${each.message}${each.help ? `\nhelp: ${each.help}` : ""}`,
  }));
  editor.dispatch(setDiagnostics(editor.state, marks));
}

async function explain(code) {
  const found = await ask("help_page", { code });
  $("help").querySelector("div").replaceWith(markdown(found.text));
  $("help").showModal();
}

function select({ from, to }) {
  editor.dispatch({ selection: { anchor: from, head: to }, scrollIntoView: true });
  editor.focus();
}

function show(found) {
  const panel = $("panel");
  links = [];
  $("download").disabled = true;
  if (view === "layout") {
    showLayout(found);
  } else if (!found.ok) {
    panel.replaceChildren(...found.diagnostics.map((each) => prose("p", `${each.code}: ${each.message}`)));
  } else if ("svg" in found) {
    panel.replaceChildren(picture(found.svg));
  } else if (view === "cxx") {
    whole = found.whole;
    links = found.links;
    $("download").disabled = false;
    panel.replaceChildren(element("p", `${found.route} ${found.config} on ${found.target}`, { class: "route" }), lines(found));
    markLines(editor.state.selection.main.head);
  } else if (view === "explain") {
    const box = document.createElement("div");
    const rest = document.createElement("details");
    rest.append(element("summary", "Every rule"), element("pre", found.details));
    box.append(element("pre", found.text), rest);
    panel.replaceChildren(box);
  } else {
    panel.replaceChildren(element("pre", found.text));
  }
}

/** Show a layout below the field that holds it; the field stays, so that it can be typed into. */
function showLayout(found) {
  const panel = $("panel");
  if (!$("layout")) {
    const label = element("label", "Layout, as SHAPE:STRIDE ");
    const field = element("input", "", { id: "layout", spellcheck: "false", value: layout });
    field.oninput = () => { layout = field.value; schedule(); };
    label.append(field);
    panel.replaceChildren(label, element("div", "", { id: "drawn" }));
  }
  if (!found.ok) {
    $("drawn").replaceChildren(...found.diagnostics.map((each) => prose("p", `${each.code}: ${each.message}. ${each.help}`)));
    return;
  }
  const facts = Object.entries(found.facts).map(([name, value]) => `${name} ${value}`).join(", ");
  $("drawn").replaceChildren(element("p", facts, { class: "route" }), picture(found.svg));
}

function picture(svg) {
  return document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
}

/** Return the lines of the C++; a line of a linked part selects its expression. */
function lines(found) {
  const box = element("pre", "");
  const owner = new Map();
  found.links.forEach((each, index) => {
    for (let line = each.first; line <= each.last; line += 1) owner.set(line, index);
  });
  found.text.split("\n").forEach((content, number) => {
    const kind = content.trimStart().startsWith("//") ? "line comment" : "line";
    const line = element("span", content, { class: kind });
    if (owner.has(number)) {
      const place = found.links[owner.get(number)];
      line.dataset.link = owner.get(number);
      if (number === place.first) {
        line.tabIndex = 0;
        line.setAttribute("role", "button");
      }
      line.onmouseenter = () => editor.dispatch({ effects: link.of(place) });
      line.onmouseleave = () => editor.dispatch({ effects: link.of(null) });
      line.onfocus = line.onmouseenter;
      line.onblur = line.onmouseleave;
      line.onclick = () => select(place);
      line.onkeydown = (event) => { if (event.key === "Enter") select(place); };
    }
    box.append(line);
  });
  return box;
}

/** Mark the parts of the C++ whose expressions have the cursor, the smallest expression alone. */
function markLines(head) {
  const inside = links.map((each, index) => [each.to - each.from, index]).filter(([, index]) => (
    links[index].from <= head && head <= links[index].to));
  const smallest = Math.min(...inside.map(([size]) => size));
  const chosen = new Set(inside.filter(([size]) => size === smallest).map(([, index]) => String(index)));
  let shown = false;
  for (const line of $("panel").querySelectorAll(".line[data-link]")) {
    line.classList.toggle("linked", chosen.has(line.dataset.link));
    if (!shown && chosen.has(line.dataset.link)) {
      shown = true;
      line.scrollIntoView({ block: "nearest" });
    }
  }
}

// Commands

function replace(content) {
  editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: content } });
}

async function format() {
  if (!isReady) return;
  const found = await ask("format_program", program());
  if (found.text !== text()) replace(found.text);
}

$("format").onclick = format;
$("share").onclick = async () => {
  keep();
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  } catch {
    say("The address of the page is the link.");
  }
};
$("download").onclick = () => {
  const anchor = element("a", "", { download: "kernel.cu", href: URL.createObjectURL(new Blob([whole])) });
  anchor.click();
  URL.revokeObjectURL(anchor.href);
};
$("example").onchange = () => {
  const found = examples.programs.find((each) => each.name === $("example").value);
  if (found) replace(found.text);
};
for (const id of ["operation", "arch", "dtype"]) $(id).onchange = refresh;
window.onhashchange = () => {
  const found = restore();
  if (found !== null && found !== text()) replace(found);
  choose(view);
};

// Tabs

const tabs = Object.entries(VIEWS).map(([name, title]) => {
  const tab = element("button", title, { role: "tab", id: `tab-${name}`, "aria-controls": "panel" });
  tab.onclick = () => choose(name);
  document.querySelector("[role=tablist]").append(tab);
  return tab;
});

function choose(name) {
  view = name;
  tabs.forEach((tab) => {
    const isChosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
  });
  $("panel").setAttribute("aria-labelledby", `tab-${name}`);
  refresh();
}

document.querySelector("[role=tablist]").onkeydown = (event) => {
  const at = tabs.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (at < 0 || !step) return;
  const next = tabs[(at + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
};

nameExample();
choose(view);
