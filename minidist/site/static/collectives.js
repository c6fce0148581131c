// Plays the traces of collectives: what each rank holds after a step, what it sends in the next one, and its bytes.
const form = document.querySelector("form.collectives"), view = document.getElementById("view");
const { colors, collectives } = await (await fetch("collectives.json")).json();

const make = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });

function cell(item) { // [chunk, ranks whose parts are in it, as bits]; null: nothing is there
  if (!item) return make("span", "·", "cell empty");
  const ranks = colors.map((_, rank) => rank).filter(rank => item[1] >> rank & 1), made = make("span", item[0], "cell");
  const stripes = ranks.map((rank, i) => `${colors[rank]} ${100 * i / ranks.length}% ${100 * (i + 1) / ranks.length}%`);
  made.style.background = `linear-gradient(90deg, ${stripes})`;
  made.title = `chunk ${item[0]}, of ${ranks.length > 1 ? "ranks" : "rank"} ${ranks.join(", ")}`;
  return made;
}

const cells = items => items.flatMap(item => [cell(item), " "]);

function draw() {
  const { name, ranks, step } = form.elements, of = collectives[name.value], run = of.ranks[ranks.value];
  step.max = run.messages.length;
  for (const output of form.querySelectorAll("output")) output.value = form.elements[output.htmlFor].value;
  history.replaceState(null, "", "#" + new URLSearchParams(new FormData(form)));
  const now = Number(step.value), table = make("table", "", "figures"), head = make("tr"), body = make("tbody");
  const next = now < run.messages.length ? `sends in step ${now + 1}` : "is done";
  for (const word of ["", now ? `holds after step ${now}` : "holds at the start", next, "bytes sent so far"]) {
    head.append(Object.assign(make("th", word), { scope: "col" }));
  }
  for (let rank = 0; rank < run.held.length; rank++) {
    const row = make("tr"), title = make("th", ` rank ${rank}`), sends = make("td"), holds = make("td");
    const chip = make("span", "", "chip");
    chip.style.background = colors[rank];
    title.prepend(chip);
    title.scope = "row";
    holds.append(...cells(run.held[rank][now]));
    for (const [source, dest, items] of run.messages[now] ?? []) {
      if (source === rank) sends.append(...cells(items), `to rank ${dest} `);
    }
    const bytes = run.messages.slice(0, now).flat().filter(sent => sent[0] === rank).reduce((sum, sent) => sum + sent[3], 0);
    row.append(title, holds, sends, make("td", String(bytes), "number"));
    body.append(row);
  }
  const top = make("thead"), wide = make("div", "", "wide");
  wide.tabIndex = 0;
  top.append(head);
  table.append(make("caption", `${of.title}, on ${ranks.value} ranks`), top, body);
  wide.append(table);
  view.replaceChildren(make("p", of.text), wide);
}

for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  if (form.elements[name]) { form.elements.step.max = 99; form.elements[name].value = value; }
}
form.addEventListener("input", event => {
  if (event.target.name === "name" || event.target.name === "ranks") form.elements.step.value = 0;
  draw();
});
form.addEventListener("click", ({ target }) => {
  if (target.dataset.by) { form.elements.step.value = Number(form.elements.step.value) + Number(target.dataset.by); draw(); }
});
form.addEventListener("submit", event => event.preventDefault());
draw();
