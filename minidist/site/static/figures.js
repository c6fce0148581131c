// The search of the table of figures: rows that contain all words stay.
const search = document.getElementById("search"), count = document.getElementById("count");
const rows = [...document.querySelectorAll("#figures tbody tr")].map(row => [row, row.textContent.toLowerCase()]);
function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const [row, text] of rows) { row.hidden = !words.every(word => text.includes(word)); shown += !row.hidden; }
  count.textContent = `${shown} of ${rows.length} figures`;
}
search.addEventListener("input", filter);
filter();
