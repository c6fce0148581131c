// The table of figures: rows stay that are of the chosen kind, paper and evidence, and contain all words.
import { bind } from "./address.js";

const form = document.getElementById("filter"), count = document.getElementById("count");
const { show, paper, evidence, words } = form.elements;
const rows = [...document.querySelectorAll("#figures tbody tr")].map(row => [row, row.textContent.toLowerCase()]);

bind(form, () => {
  const wanted = words.value.toLowerCase().split(/\s+/), isChosen = (choice, own) => ["all", ...own.split(" ")].includes(choice.value);
  for (const [row, text] of rows) {
    row.hidden = !(isChosen(show, row.dataset.kinds) && isChosen(paper, row.dataset.paper)
      && (evidence.value === "all" || evidence.value === row.dataset.evidence) && wanted.every(word => text.includes(word)));
  }
  const found = rows.filter(([row]) => !row.hidden).length;
  count.textContent = `${found} of ${rows.length} figures` + (found || show.value === "all" ? "" : ": choose all to search in all of them");
});
