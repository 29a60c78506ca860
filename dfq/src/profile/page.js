"use strict";
const form = document.getElementById("controls");
const find = document.getElementById("find");
const sort = document.getElementById("sort");
const shown = document.getElementById("shown");
const main = document.getElementById("columns");
const columns = [...main.children];

function show() {
  const wanted = find.value.trim().toLowerCase();
  let number = 0;
  for (const column of columns) {
    column.hidden = !column.dataset.name.toLowerCase().includes(wanted);
    if (!column.hidden) number += 1;
  }
  shown.textContent = number + " of " + columns.length + (columns.length === 1 ? " column" : " columns");
}

function order() {
  const by = sort.value;
  const place = (column) => Number(column.dataset.place);
  const compare = {
    place: (a, b) => place(a) - place(b),
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name) || place(a) - place(b),
  }[by] || ((a, b) => Number(b.dataset[by]) - Number(a.dataset[by]) || place(a) - place(b));
  main.append(...columns.sort(compare));
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
find.addEventListener("input", show);
sort.addEventListener("change", order);
show();
