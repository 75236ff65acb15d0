"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Sorting: a button in every heading; empty cells stay last either way.
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    return value === undefined ? cell.textContent.trim() : Number(value);
  };
  const compare = (a, b, direction) => {
    const numbers = typeof a === "number" && typeof b === "number";
    if (numbers) return a === b ? 0 : (a < b ? -1 : 1) * direction;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, "en", { numeric: true }) * direction;
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
        const rows = [...body.rows].sort((a, b) => compare(keyOf(a, column), keyOf(b, column), up ? 1 : -1));
        body.append(...rows);
      });
    });
  }

  // Filtering the rows of a long table by what they say.
  for (const field of all("input.filter")) {
    const box = field.closest(".long");
    const rows = all("tbody tr", box);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      box.querySelector(".count").textContent = `${shown} of ${rows.length} rows`;
    });
  }

  // One choice of part and estimator for the whole page. Without a script every view is shown.
  for (const select of all("select[data-views]")) {
    const show = () => {
      for (const block of all("[data-view]")) block.hidden = block.dataset.view !== select.value;
    };
    select.closest(".control").hidden = false;
    select.addEventListener("change", show);
    show();
  }

  // Legends hide and show series.
  for (const button of all("button[data-toggle]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const mark of all(`[data-slot="${button.dataset.toggle}"]`, button.closest(".chart") ?? button.closest("figure"))) {
        mark.setAttribute("visibility", shown ? "visible" : "hidden");
      }
    });
  }

  // Reading a chart, by pointer or arrow keys: the rows of the table below it, or its dots by what each says it is.
  const rowsOf = (chart) => {
    const names = all("thead th", chart).map((head) => head.textContent);
    const said = (row) => {
      const [first, ...values] = [...row.cells].map((cell) => cell.textContent);
      const told = values.map((value, i) => `${names[i + 1]} ${value}`).filter((_, i) => /\d|∞/.test(values[i]));
      return `${names[0]} ${first}: ${told.join(" · ")}`;
    };
    const rows = all("tbody tr", chart).filter((row) => row.cells[0].dataset.value !== undefined);
    return rows.map((row) => ({ x: Number(row.cells[0].dataset.value), said: said(row) }));
  };
  const dotsOf = (svg) => all("circle:not(.faint)", svg)
    .map((dot) => ({ x: dot.cx.baseVal.value, y: dot.cy.baseVal.value, said: dot.textContent }))
    .sort((a, b) => a.x - b.x || a.y - b.y);
  for (const svg of all("svg[data-reads]")) {
    const chart = svg.closest(".chart");
    const items = svg.dataset.reads === "dots" ? dotsOf(svg) : rowsOf(chart);
    if (!items.length) continue;
    const guide = svg.querySelector(".guide");
    const out = chart.querySelector(".readout");
    let at = -1;
    const read = (index) => {
      at = Math.min(Math.max(index, 0), items.length - 1);
      guide.setAttribute("x1", items[at].x);
      guide.setAttribute("x2", items[at].x);
      chart.classList.add("reading");
      out.textContent = items[at].said;
    };
    svg.addEventListener("pointermove", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const away = ({ x, y = point.y }) => Math.hypot(x - point.x, y - point.y);
      let best = 0;
      items.forEach((item, i) => { if (away(item) < away(items[best])) best = i; });
      if (best !== at) read(best);
    });
    svg.addEventListener("pointerleave", () => chart.classList.remove("reading"));
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: items.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      read(moves[event.key]);
    });
  }
})();
