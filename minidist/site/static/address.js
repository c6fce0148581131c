// Puts an address' settings into a form. A field that cannot have a value keeps its own.
export const isPower = field => "powers" in (field?.dataset ?? {}); // then the slider has the exponent

export function fill(form, settings) {
  for (const [name, setting] of settings) {
    const field = form.elements[name], value = isPower(field) ? Math.log2(setting) : setting;
    if (field && canHave(field, value)) field.value = value;
  }
}

function canHave(field, value) {
  if (field.type === "range") return value !== "" && Number.isFinite(Number(value));
  return !field.options || [...field.options].some(option => option.value === value);
}
