"use strict";
(() => {
  let charts;
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
    if (!place || !figure) return;
    const isNew = !place.on;
    Plotly.react(place, figure.data, dressed(figure.layout), config);
    if (isNew) place.on("plotly_afterplot", () => fitLabels(place));
    fitLabels(place);
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
  // The library, the charts and the drawings of other plans are deflated and written in 85 letters, five for four bytes: see packed.py.
  const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const unpacked = async (element) => {
    const text = element.textContent;
    const values = new Uint8Array(128);
    for (let i = 0; i < 85; i++) values[LETTERS.charCodeAt(i)] = i;
    const bytes = new Uint8Array((text.length / 5) * 4);
    const view = new DataView(bytes.buffer);
    for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
      let number = 0;
      for (let k = 0; k < 5; k++) number = number * 85 + values[text.charCodeAt(i + k)];
      view.setUint32(at, number);
    }
    const stream = new Blob([bytes.subarray(0, Number(element.dataset.bytes))]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  };

  const start = async () => {
    const library = document.getElementById("library");
    const script = document.createElement("script");
    script.textContent = await unpacked(library);
    library.remove();
    document.body.append(script);
    charts = JSON.parse(await unpacked(document.getElementById("charts")));
    const drawings = JSON.parse(await unpacked(document.getElementById("drawings")));
    for (const place of document.querySelectorAll("[data-drawing]")) place.outerHTML = drawings[place.dataset.drawing];
    setTheme(system.matches);
  };
  root.dataset.theme = system.matches ? "dark" : "light";
  start().catch((error) => {
    for (const place of document.querySelectorAll(".chart")) place.textContent = "This browser draws no charts: " + error;
  });
})();
