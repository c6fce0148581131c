// A page that computes: its form is its settings, the address holds them, and Python makes the view.
import { bind, fill, values } from "./address.js";

const form = document.querySelector("form.compute"), view = document.getElementById("view");
const state = document.getElementById("state"), page = form.dataset.page;
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
let asked = 0, busy = false, waiting = false, loaded = false;

let shown = JSON.stringify(values(form)); // what the view is of: the first one, of the form as it was made

function compute() {
  const now = values(form);
  for (const output of form.querySelectorAll("output")) output.value = now[output.htmlFor];
  if (busy) { waiting = true; return; }
  busy = true;
  view.ariaBusy = JSON.stringify(now) !== shown;
  const since = performance.now(), tell = () => {
    const seconds = Math.round((performance.now() - since) / 1000);
    state.value = `${loaded ? "It computes" : "Python is loading"} ${seconds ? `(${seconds} s)` : "…"}`;
  };
  tell();
  const timer = setInterval(tell, 1000);
  worker.postMessage({ page, settings: now, number: ++asked, shown: JSON.stringify(now) === shown });
  worker.onerror = () => {
    clearInterval(timer);
    view.ariaBusy = false;
    state.value = "Python could not be loaded. Reload the page to try again.";
  };
  worker.onmessage = ({ data }) => {
    clearInterval(timer);
    busy = view.ariaBusy = false;
    if (data.error) {
      state.value = data.error.trim().split("\n").at(-1);
      view.replaceChildren(); // it was of other settings
      shown = "";
      console.error(data.error);
    } else {
      if (data.view !== undefined) show(data.view); // what is shown already needs no answer
      shown = JSON.stringify(data.settings);
      view.dataset.number = data.number;
      view.dataset.took = Math.round(performance.now() - since);
      state.value = loaded ? `Computed in ${view.dataset.took} ms, by Python in this page.` : "Python is here: change a setting.";
      loaded = true;
    }
    if (waiting) { waiting = false; compute(); }
  };
}

function show(made) { // a button of the view keeps the focus; figures that the last change has changed are marked
  const focused = view.contains(document.activeElement) && document.activeElement.id, before = figures();
  view.innerHTML = made;
  if (focused) document.getElementById(focused)?.focus();
  if (loaded && before.size) for (const [place, one] of figures()) {
    if (before.get(place)?.text !== one.text) one.element.classList.add("changed");
  }
}

function figures() { // by their places: in which table, in the row of which title, in which column
  const found = new Map();
  for (const [i, table] of view.querySelectorAll("table").entries()) {
    for (const element of table.querySelectorAll("td")) {
      const place = [i, element.parentElement.cells[0].textContent, element.cellIndex].join();
      found.set(place, { element, text: element.textContent });
    }
  }
  for (const [i, element] of view.querySelectorAll("strong, .figure").entries()) found.set(`strong ${i}`, { element, text: element.textContent });
  return found;
}

const changed = bind(form, compute, { late: true });
view.addEventListener("click", ({ target }) => { // a button that puts a text of the view into a field of the form
  if (target.dataset.fills && target.ariaDisabled !== "true") { fill(form, [[target.dataset.fills, target.dataset.text]]); changed(); }
});
