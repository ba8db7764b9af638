"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const find = document.getElementById("find");
  const choices = Object.fromEntries(["case", "direction", "mask", "status"].map((name) =>
    [name, document.getElementById(name)]));

  function filter() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word)) &&
        Object.entries(choices).every(([name, list]) => !list.value || row.dataset[name] === list.value);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  }

  function sort(column) {
    const head = heads[column];
    const descending = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const number = head.dataset.kind === "number";
    const value = (row) => number ? row.cells[column].dataset.value : row.cells[column].textContent;
    const compare = (a, b) => number ? Number(a) - Number(b) : a.localeCompare(b);
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // what was not measured comes last
      return descending ? compare(y, x) : compare(x, y);
    });
    body.append(...rows);
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));
  find.addEventListener("input", filter);
  Object.values(choices).forEach((list) => list.addEventListener("change", filter));
  document.addEventListener("click", (event) => {  // a finger cannot point
    document.getElementById("told").textContent = event.target.closest("td[title], i[title]")?.title ?? "";
  });
  filter();
})();
