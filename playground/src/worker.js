// Runs evt in Pyodide. A message {id, method, arguments} is answered by {id, found} or {id, error}.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const started = start();

async function start() {
  const archive = fetch("site.zip").then((response) => response.arrayBuffer());
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", self.location.href).href });
  python.unpackArchive(await archive, "zip", { extractDir: "/lib/site" });
  python.runPython("import sys; sys.path.insert(0, '/lib/site'); from evt.editor.page import answer");
  return python.globals.get("answer");
}

started.then(
  () => self.postMessage({ ready: true }),
  (error) => self.postMessage({ ready: false, error: String(error) }),
);

self.onmessage = async ({ data }) => {
  try {
    const answer = await started;
    self.postMessage({ id: data.id, found: JSON.parse(answer(data.method, JSON.stringify(data.arguments))) });
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error) });
  }
};
