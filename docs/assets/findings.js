// Filters of the overview of findings; without this script every row is shown.
document$.subscribe(() => {
  const place = document.querySelector(".filters");
  const rows = [...document.querySelectorAll("table.findings tbody tr")];
  if (!place || place.childElementCount) return;
  const chosen = new URLSearchParams(location.search);
  const count = document.createElement("span");
  const fields = [];

  function show() {
    const wanted = fields.filter((field) => field.value);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !wanted.every((field) =>
        field.name === "text"
          ? row.textContent.toLowerCase().includes(field.value.toLowerCase())
          : row.dataset[field.name] === field.value
      );
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length}`;
    const query = new URLSearchParams(wanted.map((field) => [field.name, field.value]));
    history.replaceState(history.state, "", wanted.length ? `?${query}` : location.pathname);
  }

  function add(name, field) {
    const label = document.createElement("label");
    field.name = name;
    label.append(`${name} `, field);
    place.append(label);
    fields.push(field);
    field.value = chosen.get(name) || "";
    field.addEventListener("input", show);
  }

  for (const name of ["library", "kind", "state"]) {
    const field = document.createElement("select");
    const known = [...new Set(rows.map((row) => row.dataset[name]))].sort();
    for (const value of ["", ...known]) field.add(new Option(value || "all", value));
    add(name, field);
  }
  const text = document.createElement("input");
  text.type = "search";
  add("text", text);
  place.append(count);
  place.hidden = false;
  show();
});
