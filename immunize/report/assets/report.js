"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Sorting: a button in every heading, by the number that a cell begins with; cells without one stay last.
  const keyOf = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = /^[(>]?\s*([−-]?∞|[−-]?[\d.,]+(?:e[+-]?\d+)?)/.exec(text);
    if (!number) return /\p{L}/u.test(text) ? text : "";
    const plain = number[1].replace("−", "-").replaceAll(",", "");
    return plain.endsWith("∞") ? (plain === "∞" ? Infinity : -Infinity) : Number(plain);
  };
  const compare = (a, b, direction) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return a === b ? 0 : (a < b ? -1 : 1) * direction;
    return String(a).localeCompare(String(b), "en", { numeric: true }) * direction;
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.querySelector("button").addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending" || column === 0 && head.getAttribute("aria-sort") === "none";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => compare(keyOf(a, column), keyOf(b, column), up ? 1 : -1)));
      });
    });
  }

  // Filtering the rows of a long table by what they say.
  for (const field of all("input.filter")) {
    const box = field.closest(".long");
    const rows = all("tbody tr", box);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      box.querySelector(".count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    });
  }

  // One choice of part and estimator for the whole page. Without a script every view is shown.
  const selects = all("select[data-views]");
  const show = (title) => {
    for (const block of all("[data-view]")) block.hidden = block.dataset.view !== title;
    for (const select of selects) select.value = title;
  };
  for (const select of selects) {
    select.closest(".control").hidden = false;
    select.addEventListener("change", () => show(select.value));
  }
  if (selects.length) show(selects[0].value);
})();
