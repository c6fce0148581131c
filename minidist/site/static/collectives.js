// Plays a collective: the views of all its steps were drawn when this page was made, from a trace of a run.
import { bind, tell, write } from "./address.js";

const form = document.querySelector("form.collectives"), view = document.getElementById("view");
const { name, ranks, step } = form.elements, loaded = {};

async function draw() {
  const path = `collectives/${name.value}-${ranks.value}.json`;
  const steps = await (loaded[path] ??= fetch(path).then(answer => answer.json()));
  if (path !== `collectives/${name.value}-${ranks.value}.json`) return; // the reader has chosen another one meanwhile
  const asked = Number(step.value);
  step.max = steps.length - 1;
  if (asked > step.max) {
    tell(form, [`step = ${asked}: this one has ${step.max} steps`]);
    write(form);
  }
  view.innerHTML = steps[step.value];
  for (const button of form.querySelectorAll("[data-by]")) {
    button.ariaDisabled = Number(step.value) === (button.dataset.by > 0 ? Number(step.max) : 0); // it keeps the focus
  }
  for (const output of form.querySelectorAll("output")) output.value = form.elements[output.htmlFor].value;
}

step.max = 99; // until it is known how many this one has
addEventListener("hashchange", () => { step.max = 99; });
form.addEventListener("input", ({ target }) => { if (target !== step) step.value = 0; }); // before the address has it
const changed = bind(form, draw);

function go(by) {
  step.value = Number(step.value) + by;
  changed();
  form.dispatchEvent(new Event("change")); // each step is one of its own
}

form.addEventListener("click", ({ target }) => { if (target.dataset.by) go(Number(target.dataset.by)); });
addEventListener("keydown", event => { // in a field, arrow keys change the field
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by && !event.target.closest("input, select, textarea")) go(by);
});
