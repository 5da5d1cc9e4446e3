// The colours of a program, from the words of the language in words.json, which evt writes.
import { HighlightStyle, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { tags } from "@lezer/highlight";
import words from "./words.json";

const sets = Object.fromEntries(Object.entries(words).map(([kind, list]) => [kind, new Set(list)]));

function token(stream) {
  if (stream.eatSpace()) return null;
  if (stream.match(/#.*/)) return "comment";
  if (stream.match(/(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?/)) return "number";
  const name = stream.match(/[A-Za-z_][A-Za-z0-9_]*/);
  if (name) {
    const word = name[0];
    if (sets.keywords.has(word)) return "keyword";
    if (sets.types.has(word)) return "typeName";
    if (stream.match(/'*\s*(\[[^\]]*\])?\s*\(/, false)) {
      return sets.functions.has(word) || sets.operations.has(word) ? "standardFunction" : "function";
    }
    return sets.names.has(word) ? "atom" : "variableName";
  }
  stream.next();
  return "operator";
}

const style = HighlightStyle.define([
  { tag: tags.comment, color: "light-dark(#6a737d, #8b95a3)", fontStyle: "italic" },
  { tag: tags.number, color: "light-dark(#9a4b00, #f0a868)" },
  { tag: tags.keyword, color: "light-dark(#8250df, #c9a4ff)", fontWeight: "600" },
  { tag: tags.typeName, color: "light-dark(#116329, #7ee2a0)" },
  { tag: tags.atom, color: "light-dark(#1f5fbf, #7fb0ff)", fontWeight: "600" },
  { tag: tags.standard(tags.function(tags.variableName)), color: "light-dark(#0b6e8a, #6fd3ee)" },
  { tag: tags.function(tags.variableName), color: "light-dark(#0b6e8a, #6fd3ee)" },
]);

export function language() {
  const table = {
    standardFunction: tags.standard(tags.function(tags.variableName)),
    function: tags.function(tags.variableName),
  };
  return [StreamLanguage.define({ token, tokenTable: table }), syntaxHighlighting(style)];
}
