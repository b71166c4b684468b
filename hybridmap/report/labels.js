"use strict";
// Names beside bars: one that another bar, another name or the edge would cut goes to the other side of its bar, or away.
const fitLabels = (chart) => {
  const ground = chart.querySelector(".nsewdrag")?.getBoundingClientRect();
  if (!ground) return;
  const points = [...chart.querySelectorAll(".bars .point")];
  const bars = points.map((point) => point.querySelector("path").getBoundingClientRect());
  const names = [];
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const free = (box, own) =>
    box.left >= ground.left - 1 && box.right <= ground.right + 1 && !names.some((other) => meet(box, other)) && !bars.some((other) => other !== own && meet(box, other));
  points.forEach((point, i) => {
    const text = point.querySelector("text");
    if (!text) return;
    text.style.translate = text.style.visibility = "";
    const at = text.getBoundingClientRect();
    const right = bars[i].left - 4;
    const moved = { left: right - at.width, right, top: at.top, bottom: at.bottom };
    if (free(at, bars[i])) names.push(at);
    else if (free(moved, bars[i])) {
      text.style.translate = `${moved.left - at.left}px`;
      names.push(moved);
    } else text.style.visibility = "hidden";
  });
};
