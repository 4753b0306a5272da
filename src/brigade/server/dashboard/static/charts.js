// The charts of a queue. Rows come with the event stream: time, then the columns named below.
(() => {
  const COLUMNS = ["time", "ready", "delayed", "in_flight", "enqueued", "acked", "failed", "wait50", "wait95", "run50", "run95"];
  const CHARTS = {
    depth: [["ready", "c1"], ["delayed", "c3"], ["in_flight", "c2"]],
    rates: [["enqueued", "c1"], ["acked", "c2"], ["failed", "c4"]],
    wait: [["wait50", "c1"], ["wait95", "c3"]],
    run: [["run50", "c1"], ["run95", "c3"]],
  };
  const KEPT = 360;
  const GAP = 90; // Seconds in which nobody looked: a line is not drawn across.
  const rows = [];
  let plots = [];

  const colour = (name) => {
    const probe = document.querySelector(`.key .${name}`);
    return probe ? getComputedStyle(probe).backgroundColor : "gray";
  };
  const muted = () => getComputedStyle(document.querySelector(".key")).color;
  const seconds = (value) => value < 1 ? `${Math.round(value * 1000)} ms` : value < 120 ? `${+value.toFixed(1)} s` : `${+(value / 60).toFixed(1)} min`;
  const plain = (value) => value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : `${+value.toFixed(2)}`;

  const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit" });

  const data = (series) => ["time", ...series.map(([name]) => name)].map((name) => {
    const column = COLUMNS.indexOf(name);
    return rows.map((row) => row[column]);
  });

  const draw = () => {
    plots.forEach(({ plot }) => plot.destroy());
    plots = [...document.querySelectorAll("[data-chart]")].map((place) => {
      const series = CHARTS[place.dataset.chart];
      const timed = place.dataset.chart === "wait" || place.dataset.chart === "run";
      const axis = { stroke: muted(), grid: { stroke: "rgba(128,128,128,.16)", width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      const plot = new uPlot({
        width: place.clientWidth, height: place.clientHeight, legend: { show: false }, padding: [8, 8, 0, 0],
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
        axes: [
          { ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map(clock) },
          { ...axis, size: 52, space: 32, values: (_, ticks) => ticks.map((value) => timed ? seconds(value) : plain(value)) },
        ],
        series: [{}, ...series.map(([name, key]) => ({ label: name, stroke: colour(key), width: 1.5, points: { show: false } }))],
      }, data(series), place);
      return { plot, series, place };
    });
  };

  const refresh = () => plots.forEach(({ plot, series }) => plot.setData(data(series)));
  window.brigadeCharts = {
    add(more) {
      const newest = rows.length ? rows[rows.length - 1][0] : 0;
      for (const row of more.filter((one) => one[0] > newest)) {
        const before = rows.length ? rows[rows.length - 1][0] : row[0];
        if (row[0] - before > GAP) rows.push([before + 1, ...row.slice(1).map(() => null)]);
        rows.push(row);
      }
      rows.splice(0, Math.max(0, rows.length - KEPT));
      if (plots.length) refresh(); else if (rows.length) draw();
    },
    redraw: () => plots.length && draw(),
    rows,
  };
  new ResizeObserver(() => plots.forEach(({ plot, place }) => plot.setSize({ width: place.clientWidth, height: place.clientHeight })))
    .observe(document.querySelector(".charts") ?? document.body);
})();
