"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const themeButton = document.getElementById("theme");
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const dressed = (layout) => {
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--line") };
    return {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--text"), family: "system-ui, sans-serif", size: 12 },
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    };
  };

  const draw = (key, figure) => {
    const place = document.getElementById("chart-" + key);
    if (place && figure) Plotly.react(place, figure.data, dressed(figure.layout), config);
  };

  const chosen = () => document.querySelector("input[name=plan]:checked").value;

  const drawPlan = () => {
    const key = chosen();
    for (const block of document.querySelectorAll("[data-plan]")) block.hidden = block.dataset.plan !== key;
    for (const [name, figure] of Object.entries(charts.byPlan[key])) draw(name, figure);
  };

  const drawAll = () => {
    for (const [name, figure] of Object.entries(charts.fixed)) draw(name, figure);
    drawPlan();
  };

  const setTheme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    themeButton.textContent = dark ? "Light" : "Dark";
    themeButton.setAttribute("aria-pressed", String(dark));
    drawAll();
  };

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", (event) => setTheme(event.matches));
  themeButton.addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  document.getElementById("switch").addEventListener("change", drawPlan);
  document.getElementById("copy").addEventListener("click", async (event) => {
    const text = document.getElementById("job-text");
    try {
      await navigator.clipboard.writeText(text.textContent);
      event.target.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      event.target.textContent = "Selected";
    }
  });
  setTheme(system.matches);
})();
