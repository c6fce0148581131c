// The table of figures: rows stay that are of the chosen paper and evidence, and contain all words. The address holds these.
import { fill } from "./address.js";

const form = document.getElementById("filter"), count = document.getElementById("count");
const { paper, evidence, words } = form.elements;
const rows = [...document.querySelectorAll("#figures tbody tr")].map(row => [row, row.textContent.toLowerCase()]);

function filter() {
  const wanted = words.value.toLowerCase().split(/\s+/), isChosen = (choice, own) => ["all", own].includes(choice.value);
  for (const [row, text] of rows) {
    row.hidden = !(isChosen(paper, row.dataset.paper) && isChosen(evidence, row.dataset.evidence)
      && wanted.every(word => text.includes(word)));
  }
  count.textContent = `${rows.filter(([row]) => !row.hidden).length} of ${rows.length} figures`;
  if (location.hash || form.matches(":focus-within")) history.replaceState(null, "", "#" + new URLSearchParams(new FormData(form)));
}

function read() {
  fill(form, new URLSearchParams(location.hash.slice(1)));
  filter();
}

form.addEventListener("input", filter);
form.addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", read);
read();
