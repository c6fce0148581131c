// ZeRO's stages on the home page: all views were drawn when this page was made.
import { bind, isPower } from "./address.js";

const form = document.querySelector("form.ladder"), view = document.getElementById("view"), loaded = {};
const { model, dp, zero } = form.elements;

bind(form, async () => {
  const path = () => `ladder/${model.value}-${2 ** dp.value}.json`, asked = path();
  const stages = await (loaded[asked] ??= fetch(asked).then(answer => answer.json()));
  if (path() !== asked) return; // the reader has chosen other numbers meanwhile
  view.innerHTML = stages[zero.value];
  for (const output of form.querySelectorAll("output")) {
    const field = form.elements[output.htmlFor];
    output.value = isPower(field) ? 2 ** field.value : field.value;
  }
});
