// A page that computes: its form is its settings, the address holds them, and Python makes the view.
const form = document.querySelector("form.compute"), view = document.getElementById("view");
const state = document.getElementById("state"), page = form.dataset.page;
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
let asked = 0, busy = false, waiting = false, loaded = false;

const isPower = name => "powers" in (form.elements[name].dataset ?? {}); // then the slider has the exponent

function settings() {
  const values = Object.fromEntries(new FormData(form));
  for (const name in values) if (isPower(name)) values[name] = String(2 ** values[name]);
  return values;
}

function fill(values) {
  for (const [name, value] of values) {
    if (form.elements[name]) form.elements[name].value = isPower(name) ? Math.log2(value) : value;
  }
}

function compute() {
  const now = settings();
  history.replaceState(null, "", "#" + new URLSearchParams(now));
  for (const output of form.querySelectorAll("output")) output.value = now[output.htmlFor];
  if (busy) { waiting = true; return; }
  busy = true;
  const since = performance.now(), tell = () => {
    const seconds = Math.round((performance.now() - since) / 1000);
    state.value = `${loaded ? "It computes" : "Python is loading"} ${seconds ? `(${seconds} s)` : "…"}`;
  };
  tell();
  const timer = setInterval(tell, 1000);
  worker.postMessage({ page, settings: now, number: ++asked });
  worker.onmessage = ({ data }) => {
    clearInterval(timer);
    busy = false;
    if (data.error) { state.value = data.error; console.error(data.error); }
    else {
      loaded = true;
      view.innerHTML = data.view;
      view.dataset.number = data.number;
      view.dataset.took = Math.round(performance.now() - since);
      state.value = `Computed in ${view.dataset.took} ms, by Python in this page.`;
    }
    if (waiting) { waiting = false; compute(); }
  };
}

form.addEventListener("input", event => { if (event.target.type !== "text") compute(); });
form.addEventListener("change", event => { if (event.target.type === "text") compute(); });
form.addEventListener("submit", event => { event.preventDefault(); compute(); });
view.addEventListener("click", ({ target }) => { // a button that puts a text of the view into a field of the form
  if (target.dataset.fills) { fill([[target.dataset.fills, target.dataset.text]]); compute(); }
});
addEventListener("hashchange", () => { fill(new URLSearchParams(location.hash.slice(1))); compute(); });
fill(new URLSearchParams(location.hash.slice(1)));
compute();
