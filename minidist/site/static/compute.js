// A page that computes: its form is its settings, the address holds them, and Python makes the view.
const form = document.querySelector("form.compute"), view = document.getElementById("view");
const state = document.getElementById("state"), page = form.dataset.page;
const worker = new Worker(new URL("worker.js", document.currentScript?.src ?? import.meta.url), { type: "module" });
let asked = 0, busy = false, waiting = false;

const settings = () => Object.fromEntries(new FormData(form));

function compute() {
  history.replaceState(null, "", "#" + new URLSearchParams(settings()));
  for (const output of form.querySelectorAll("output")) output.value = form.elements[output.htmlFor].value;
  if (busy) { waiting = true; return; }
  busy = true;
  state.value = "…";
  worker.postMessage({ page, settings: settings(), number: ++asked, since: performance.now() });
}

worker.onmessage = ({ data }) => {
  busy = false;
  if (data.error) { state.value = data.error; console.error(data.error); }
  else {
    view.innerHTML = data.view;
    view.dataset.number = data.number;
    state.value = `${Math.round(performance.now() - data.since)} ms`;
  }
  if (waiting) { waiting = false; compute(); }
};

for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  if (form.elements[name]) form.elements[name].value = value;
}
form.addEventListener("input", compute);
form.addEventListener("submit", event => event.preventDefault());
compute();
