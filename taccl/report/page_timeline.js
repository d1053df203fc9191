const ROW_HEIGHTS = [3, 6, 11, 18], LABELLED = 11, AXIS = 22, GUTTER = 230, NEAR = 4;
const MAX_HEIGHT = 560, MAX_PIXELS = 30000;
const [RECEIVES, SENDS] = [0, 1];

const us = (ps) => (ps / 1e6).toFixed(6).replace(/\.?0+$/, "") + " us";

/* The first of the ids for which holds(id) is true; it is false before and true after. */
function firstWhere(ids, holds) {
  let low = 0, high = ids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(ids[middle])) high = middle; else low = middle + 1;
  }
  return low;
}

/* The number of the first track of each rank. */
function firstTracks(tracks) {
  return tracks.map((_, n) => n).filter((n) => n === 0 || tracks[n - 1][0] !== tracks[n][0]);
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "quiet", "line", "panel", "receive", "send", "work", "path"];
  return Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
}

/* Make a canvas as fine as the screen, and empty. */
function clear(canvas, pen, colour) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const dots = Math.min(window.devicePixelRatio || 1, MAX_PIXELS / Math.max(width, height));
  canvas.width = Math.round(width * dots);
  canvas.height = Math.round(height * dots);
  pen.setTransform(dots, 0, 0, dots, 0, 0);
  pen.fillStyle = colour.paper;
  pen.fillRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
}

/* Add a term and what it says, a text or a node, to a list. */
function field(list, name, value) {
  const term = document.createElement("dt"), text = document.createElement("dd");
  term.textContent = name;
  if (value instanceof Node) text.append(value); else text.textContent = value;
  list.append(term, text);
}

class Timeline {
  constructor(section, data) {
    this.data = data;
    this.spans = data.spans;
    this.canvas = section.querySelector("canvas");
    this.detail = section.querySelector("dl.detail");
    this.pen = this.canvas.getContext("2d");
    this.rows = data.tracks.map(() => []);
    this.spans.track.forEach((track, id) => this.rows[track].push(id));
    this.onPath = new Set(data.path);
    this.whole = Math.max(data.time || 0, 1);
    this.left = 0;
    this.top = 0;
    this.span = this.whole;
    this.selected = -1;
    this.pending = false;
    this.cursor = null;
    this.firsts = firstTracks(data.tracks);
    this.setRow(ROW_HEIGHTS.at(-1));
    this.listen(section);
    this.offerRanks(section.querySelector("select.ranks"));
  }

  listen(section) {
    const canvas = this.canvas;
    new ResizeObserver(() => this.later()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
    canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => { this.held = null; });
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const button of section.querySelectorAll("button[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
  }

  /* Rows of another height: low ones show more threadblocks at once. */
  setRow(height) {
    this.top *= height / (this.row || height);
    this.row = height;
    const whole = Math.min(MAX_HEIGHT, AXIS + height * this.rows.length + 2);
    this.canvas.style.height = Math.max(whole, AXIS + 20) + "px";
  }

  offerRanks(select) {
    this.firsts.forEach((track) => select.add(new Option(this.data.tracks[track][0], track)));
    select.addEventListener("change", () => {
      this.top = Number(select.value) * this.row;
      this.clamp();
    });
  }

  get scale() { return Math.max(this.canvas.clientWidth - GUTTER, 1) / this.span; }
  x(time) { return GUTTER + (time - this.left) * this.scale; }
  y(track) { return AXIS + track * this.row - this.top; }
  end(id) { return this.spans.start[id] + this.spans.length[id]; }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  clamp() {
    this.span = Math.min(Math.max(this.span, 10), this.whole);
    this.left = Math.min(Math.max(this.left, 0), this.whole - this.span);
    const most = AXIS + this.row * this.rows.length + 2 - this.canvas.clientHeight;
    this.top = Math.min(Math.max(this.top, 0), Math.max(most, 0));
    this.later();
  }

  zoom(factor, at) {
    const time = this.left + (at - GUTTER) / this.scale;
    this.span = Math.min(Math.max(this.span * factor, 10), this.whole);
    this.left = time - (at - GUTTER) / this.scale;
    this.clamp();
  }

  act(what) {
    const middle = (GUTTER + this.canvas.clientWidth) / 2;
    if (what === "in") this.zoom(0.5, middle);
    if (what === "out") this.zoom(2, middle);
    const height = ROW_HEIGHTS.indexOf(this.row) + {taller: 1, lower: -1}[what];
    if (ROW_HEIGHTS[height]) { this.setRow(ROW_HEIGHTS[height]); this.clamp(); }
    if (what === "all") { this.left = 0; this.span = this.whole; this.top = 0; this.clamp(); }
  }

  wheel(event) {
    event.preventDefault();
    if (event.shiftKey || event.offsetX < GUTTER) {
      this.top += event.deltaY || event.deltaX;
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.left += event.deltaX / this.scale;
    } else {
      this.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) * 0.005), event.offsetX);
    }
    this.clamp();
  }

  press(event) {
    this.held = {x: event.offsetX, y: event.offsetY, left: this.left, top: this.top, far: false};
    if (event.isTrusted) this.canvas.setPointerCapture(event.pointerId);
  }

  drag(event) {
    if (!this.held) return;
    const dx = event.offsetX - this.held.x, dy = event.offsetY - this.held.y;
    if (Math.abs(dx) + Math.abs(dy) > NEAR) this.held.far = true;
    if (!this.held.far) return;
    this.left = this.held.left - dx / this.scale;
    this.top = this.held.top - dy;
    this.clamp();
  }

  release(event) {
    const held = this.held;
    this.held = null;
    if (held && !held.far) this.select(this.at(event.offsetX, event.offsetY));
  }

  key(event) {
    const step = this.span / 8;
    const moves = {
      ArrowLeft: () => { this.left -= step; }, ArrowRight: () => { this.left += step; },
      ArrowUp: () => { this.top -= this.row; }, ArrowDown: () => { this.top += this.row; },
      PageUp: () => { this.top -= this.canvas.clientHeight; },
      PageDown: () => { this.top += this.canvas.clientHeight; },
      "+": () => this.act("in"), "=": () => this.act("in"), "-": () => this.act("out"),
      "0": () => this.act("all"), n: () => this.next(1), p: () => this.next(-1),
      w: () => this.show(this.spans.wait[this.selected]),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
    this.clamp();
  }

  next(step) {
    if (this.selected < 0) { this.show(0); return; }
    const row = this.rows[this.spans.track[this.selected]];
    this.show(row[row.indexOf(this.selected) + step]);
  }

  /* The span at a place of the canvas, or the nearest within a few pixels; -1 for none. */
  at(x, y) {
    const row = this.rows[Math.floor((y - AXIS + this.top) / this.row)];
    if (!row || y < AXIS || x < GUTTER) return -1;
    const time = this.left + (x - GUTTER) / this.scale, near = NEAR / this.scale;
    let best = -1, least = Infinity;
    for (let i = firstWhere(row, (id) => this.end(id) >= time - near); i < row.length; i++) {
      const start = this.spans.start[row[i]];
      if (start > time + near) break;
      const away = Math.max(start - time, time - this.end(row[i]), 0);
      if (away < least) { least = away; best = row[i]; }
    }
    return best;
  }

  /* Select a span and bring it into view. */
  show(id) {
    if (id === undefined || id < 0 || id >= this.spans.start.length) return;
    const start = this.spans.start[id], end = this.end(id);
    if (end < this.left || start > this.left + this.span) {
      this.left = (start + end - this.span) / 2;
    }
    const y = this.y(this.spans.track[id]);
    if (y < AXIS || y + this.row > this.canvas.clientHeight) {
      this.top += y - this.canvas.clientHeight / 2;
    }
    this.select(id);
    this.clamp();
  }

  select(id) {
    this.selected = id;
    this.detail.replaceChildren();
    if (id < 0) field(this.detail, "span", "none here: click on one");
    else this.describe(id);
    this.later();
  }

  describe(id) {
    const {data, spans} = this, track = spans.track[id];
    const [op, chunks] = data.steps[track][spans.step[id]];
    const kind = ["receives", "sends", "local work"][spans.kind[id]];
    field(this.detail, "span", `${id} (${kind}${this.onPath.has(id) ? ", on the critical path" : ""})`);
    field(this.detail, "where", data.tracks[track].join(", "));
    field(this.detail, "step", `${spans.step[id]}: ${op} ${chunks}`);
    field(this.detail, "bytes", `${spans.size[id]} in iteration ${spans.iteration[id]}`);
    field(this.detail, "start", us(spans.start[id]));
    field(this.detail, "end", `${us(this.end(id))} (${us(spans.length[id])} long)`);
    if (spans.arrival[id] >= 0) field(this.detail, "arrival", us(spans.arrival[id]));
    if (spans.link[id] >= 0) field(this.detail, "link", data.links[spans.link[id]]);
    const before = spans.wait[id];
    if (before < 0) { field(this.detail, "waited for", data.whys[0]); return; }
    const button = document.createElement("button");
    const owner = before < spans.track.length
      ? `, ${data.tracks[spans.track[before]].join(" ")} step ${spans.step[before]}` : "";
    button.textContent = `${data.whys[spans.why[id]]}: span ${before}${owner}`;
    button.addEventListener("click", () => this.show(before));
    field(this.detail, "waited for", button);
  }

  draw() {
    const {canvas, pen} = this, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    const colour = colours();
    clear(canvas, pen, colour);
    const first = Math.max(0, Math.floor(this.top / this.row));
    const last = Math.min(this.rows.length, Math.ceil((this.top + height - AXIS) / this.row));
    for (let track = first; track < last; track++) this.drawRow(track, width, colour);
    this.drawSelected(width, colour);
    for (let track = first; track < last; track++) this.drawLabel(track, width, colour);
    this.drawRanks(first, last, colour);
    this.drawCursor(colour, height);
    this.drawAxis(width, colour);
  }

  drawCursor(colour, height) {
    if (this.cursor === null) return;
    const x = this.x(this.cursor);
    this.pen.fillStyle = colour.ink;
    if (x >= GUTTER - 1) this.pen.fillRect(x, AXIS, 1, height);
  }

  drawRow(track, width, colour) {
    const {pen, rows, spans} = this, row = rows[track], y = this.y(track);
    const fills = [colour.receive, colour.send, colour.work];
    const until = this.left + this.span;
    const gap = this.row >= LABELLED ? 2 : 0, thick = Math.max(1, Math.floor(this.row / 6));
    let painted = -1, ticked = -1;
    for (let i = firstWhere(row, (id) => this.end(id) >= this.left); i < row.length; i++) {
      const id = row[i];
      if (spans.start[id] > until) break;
      const x = Math.max(this.x(spans.start[id]), GUTTER - 1);
      const wide = Math.min(this.x(this.end(id)), width) - x;
      const marked = this.onPath.has(id);
      const pixel = Math.floor(x), instant = !spans.length[id];
      /* Many spans share a pixel when zoomed out: one of them stands for all, and one that
         lasts rather than one that takes no time. */
      if (!marked && wide < 1 && (pixel === painted || (instant && pixel === ticked))) continue;
      if (instant) ticked = pixel; else painted = Math.floor(x + Math.max(wide, 1) - 0.5);
      pen.fillStyle = fills[spans.kind[id]];
      pen.fillRect(x, y + gap, Math.max(wide - 0.5, 1), this.row - 2 * gap);
      if (marked) {
        pen.fillStyle = colour.path;
        pen.fillRect(x, y + this.row - gap - thick, Math.max(wide, 1), thick);
      }
      if (wide > 34 && this.row >= LABELLED) {
        pen.fillStyle = colour.paper;
        pen.fillText(this.data.steps[track][spans.step[id]][0], x + 4, y + this.row / 2);
      }
    }
  }

  drawSelected(width, colour) {
    const {pen, spans, selected} = this;
    if (selected < 0) return;
    const x = this.x(spans.start[selected]), y = this.y(spans.track[selected]);
    pen.strokeStyle = colour.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x, y + 1, Math.max(this.x(this.end(selected)) - x, 2), this.row - 3);
    const before = spans.wait[selected];
    if (before < 0 || before >= spans.start.length) return;
    pen.lineWidth = 1;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(this.x(spans.start[before]), this.y(spans.track[before]) + this.row / 2);
    pen.lineTo(x, y + this.row / 2);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawLabel(track, width, colour) {
    const {pen, data} = this, y = this.y(track), [rank, label] = data.tracks[track];
    pen.fillStyle = colour.panel;
    pen.fillRect(0, y, GUTTER, this.row);
    pen.fillStyle = colour.line;
    if (track === 0 || data.tracks[track - 1][0] !== rank) pen.fillRect(0, y, width, 1);
    pen.fillRect(GUTTER - 1, y, 1, this.row);
    if (this.row < LABELLED) return;
    pen.save();
    pen.beginPath();
    pen.rect(58, y, GUTTER - 62, this.row);
    pen.clip();
    pen.fillStyle = colour.quiet;
    pen.fillText(label, 58, y + this.row / 2);
    pen.restore();
  }

  /* The name of each rank at its first visible track, where there is room for it. */
  drawRanks(first, last, colour) {
    const {pen, data} = this;
    let free = -Infinity;
    pen.fillStyle = colour.ink;
    for (let track = first; track < last; track++) {
      const rank = data.tracks[track][0], y = this.y(track);
      const begins = track === first || data.tracks[track - 1][0] !== rank;
      if (!begins || y < free) continue;
      pen.fillText(rank, 6, y + Math.max(this.row, LABELLED) / 2);
      free = y + LABELLED;
    }
  }

  drawAxis(width, colour) {
    const {pen} = this;
    pen.fillStyle = colour.panel;
    pen.fillRect(0, 0, width, AXIS);
    pen.fillStyle = colour.line;
    pen.fillRect(0, AXIS - 1, width, 1);
    const rough = this.span * 110 / Math.max(width - GUTTER, 1);
    const ten = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const tick = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= rough) || 10 * ten;
    for (let n = Math.ceil(this.left / tick); n * tick <= this.left + this.span; n++) {
      const x = this.x(n * tick);
      pen.fillStyle = colour.line;
      pen.fillRect(x, AXIS - 6, 1, 6);
      pen.fillStyle = colour.ink;
      pen.fillText(us(n * tick), x + 3, AXIS / 2);
    }
    pen.fillStyle = colour.quiet;
    pen.fillText(`${this.rows.length} tracks`, 6, AXIS / 2);
  }
}

