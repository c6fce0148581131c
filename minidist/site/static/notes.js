// Where there is no room for notes next to code 120 columns wide, a note is closed, and opens next to its code.
{
  const wide = matchMedia("(min-width: 118em)"), button = document.querySelector(".notes button");
  const set = open => {
    for (const note of document.querySelectorAll("details.note")) note.open = open;
    button.textContent = open ? "Close all notes" : "Open all notes";
  };
  set(wide.matches);
  wide.addEventListener("change", () => set(wide.matches));
  button.addEventListener("click", () => set(button.textContent.startsWith("Open")));
  addEventListener("beforeprint", () => set(true));
}
