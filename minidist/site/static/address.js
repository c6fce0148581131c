// A form's settings are in the address: a link or a reload shows the same, and Back undoes a change.
export const isPower = field => "powers" in (field?.dataset ?? {}); // then the slider has the exponent

// Puts settings into a form. A field that cannot have a value keeps its own; returns a line for each of these.
export function fill(form, settings) {
  const wrong = [];
  for (const [name, setting] of settings) {
    const field = form.elements[name];
    if (!field) { wrong.push(`${name}: this page has no such setting`); continue; }
    const value = isPower(field) ? Math.log2(setting) : setting, before = field.value;
    field.value = value;
    if (!taken(field, value)) {
      field.value = before;
      wrong.push(`${name} = ${setting}: ${allowed(field)}; this page shows ${isPower(field) ? 2 ** before : before}`);
    }
  }
  return wrong;
}

function taken(field, value) {
  if (field.type === "range") return String(value).trim() !== "" && Number(field.value) === Number(value);
  return !choices(field) || field.value === value;
}

function choices(field) {
  return field.options ?? (field instanceof RadioNodeList ? field : undefined);
}

function allowed(field) {
  if (choices(field)) return `not one of ${[...choices(field)].map(choice => choice.value).join(", ")}`;
  const [least, most] = isPower(field) ? [2 ** field.min, 2 ** field.max] : [field.min, field.max];
  return `not ${isPower(field) ? "a power of two" : `in steps of ${field.step || 1}`} from ${least} to ${most}`;
}

// Says above the form what is wrong with the address; nothing, if nothing is.
export function tell(form, wrong) {
  form.previousElementSibling?.matches(".refused.address") && form.previousElementSibling.remove();
  if (!wrong.length) return;
  const said = document.createElement("p");
  said.className = "refused address";
  said.setAttribute("role", "status");
  said.textContent = `The address asks for what cannot be. ${wrong.join(". ")}.`;
  form.before(said);
}

let dragging = false;

export function values(form) {
  const found = Object.fromEntries(new FormData(form));
  for (const name in found) if (isPower(form.elements[name])) found[name] = String(2 ** found[name]);
  return found;
}

// Writes the settings into the address. A change is a step of the browser's history; a slider that moves is one change.
export function write(form, change = false) {
  const address = "#" + new URLSearchParams(values(form));
  if (address === location.hash) return;
  history[change && !dragging ? "pushState" : "replaceState"](null, "", address);
  dragging = change;
}

// Keeps a form and the address the same, and calls `update` after each change. late: texts count when they are left.
export function bind(form, update, { late = false } = {}) {
  const read = () => {
    form.reset();
    tell(form, fill(form, new URLSearchParams(location.hash.slice(1))));
    dragging = false;
    if (location.hash) write(form);
    update();
  };
  const changed = () => { tell(form, []); write(form, true); update(); };
  form.addEventListener("input", ({ target }) => { if (!late || target.type !== "text") changed(); });
  form.addEventListener("change", ({ target }) => { if (late && target.type === "text") changed(); dragging = false; });
  form.addEventListener("submit", event => { event.preventDefault(); if (late) changed(); dragging = false; });
  addEventListener("hashchange", read);
  read();
  return changed;
}
