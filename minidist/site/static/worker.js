// Runs the project's own Python in the reader's browser, away from the page, so that the page stays quick.
import { loadPyodide } from "../pyodide/pyodide.mjs";

const ready = (async () => {
  const python = await loadPyodide({ indexURL: new URL("../pyodide/", import.meta.url).href });
  const modules = await fetch(new URL("../pyodide/minidist.zip", import.meta.url));
  python.unpackArchive(await modules.arrayBuffer(), "zip");
  return python.runPython("from minidist.site.compute import answer; answer");
})();

// What fails while Python loads is the worker's error: the page says that Python could not be loaded.
addEventListener("unhandledrejection", ({ reason }) => reportError(reason));

onmessage = async ({ data }) => {
  const answer = await ready;
  try {
    postMessage({ ...data, view: data.shown ? undefined : answer(data.page, JSON.stringify(data.settings)) });
  } catch (error) {
    postMessage({ ...data, error: String(error) });
  }
};
