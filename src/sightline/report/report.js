"use strict";
// The number under the pointer, or under the cell that the arrow keys move; without this all but that is there.
(() => {
  const sides = JSON.parse(document.getElementById("sides").textContent);
  const readout = document.getElementById("readout");
  const pairs = (map, name) => map.dataset[name].split(",").map(Number);
  const decoded = new WeakMap();

  function values(map) {
    if (!decoded.has(map)) {
      const bytes = Uint8Array.from(atob(map.dataset.values), (letter) => letter.charCodeAt(0));
      decoded.set(map, new DataView(bytes.buffer));
    }
    return decoded.get(map);
  }

  function number(map, place) {
    const code = values(map).getUint16(2 * place, true);
    if (code > 65000) return { 65535: "−∞ (masked)", 65534: "∞", 65533: "not a number" }[code];
    const [low, high] = pairs(map, "range");
    return String(Number((low + (code / 65000) * (high - low)).toPrecision(4))).replace("-", "−");
  }

  function show(map, row, column) {
    const [rows, columns] = pairs(map, "size");
    row = Math.min(Math.max(row, 0), rows - 1);
    column = Math.min(Math.max(column, 0), columns - 1);
    const [down, across] = pairs(map, "sides");
    const isolate = (text) => "\u2068" + text + "\u2069"; // whichever way it is written
    const told = isolate(sides[down][row]) + " · " + isolate(sides[across][column]);
    readout.textContent = `${told}: ${number(map, row * columns + column)}   (row ${row}, column ${column})`;
    let frame = map.querySelector("i");
    if (!frame) frame = map.appendChild(document.createElement("i"));
    Object.assign(frame.style, {
      left: `${(100 * column) / columns}%`,
      top: `${(100 * row) / rows}%`,
      width: `${100 / columns}%`,
      height: `${100 / rows}%`,
    });
    map.dataset.at = `${row},${column}`;
  }

  function leave(map) {
    map.querySelector("i")?.remove();
    readout.textContent = "";
  }

  document.addEventListener("pointermove", (event) => {
    const map = event.target.closest?.(".map");
    if (!map) return;
    const box = map.getBoundingClientRect();
    const [rows, columns] = pairs(map, "size");
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    show(map, row, Math.floor(((event.clientX - box.left) / box.width) * columns));
  });
  document.addEventListener("pointerout", (event) => {
    const map = event.target.closest?.(".map");
    if (map && !map.contains(event.relatedTarget)) leave(map);
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(".map")) show(event.target, ...(event.target.dataset.at ?? "0,0").split(",").map(Number));
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches(".map")) leave(event.target);
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches(".map")) return;
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [row, column] = (event.target.dataset.at ?? "0,0").split(",").map(Number);
    if (event.key === "Escape") event.target.blur();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(event.target, row + moves[event.key][0], column + moves[event.key][1]);
  });
})();
