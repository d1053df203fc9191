"use strict";
(() => {
  const ROW = 18, AXIS = 22, GUTTER = 230, MAX_HEIGHT = 560, NEAR = 4;
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
      const height = Math.min(MAX_HEIGHT, AXIS + ROW * this.rows.length + 2);
      this.canvas.style.height = height + "px";
      this.listen(section);
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

    get scale() { return Math.max(this.canvas.clientWidth - GUTTER, 1) / this.span; }
    x(time) { return GUTTER + (time - this.left) * this.scale; }
    y(track) { return AXIS + track * ROW - this.top; }
    end(id) { return this.spans.start[id] + this.spans.length[id]; }

    later() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => { this.pending = false; this.draw(); });
    }

    clamp() {
      this.span = Math.min(Math.max(this.span, 10), this.whole);
      this.left = Math.min(Math.max(this.left, 0), this.whole - this.span);
      const most = AXIS + ROW * this.rows.length + 2 - this.canvas.clientHeight;
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
        ArrowUp: () => { this.top -= ROW; }, ArrowDown: () => { this.top += ROW; },
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
      const row = this.rows[Math.floor((y - AXIS + this.top) / ROW)];
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
      if (y < AXIS || y + ROW > this.canvas.clientHeight) {
        this.top += y - this.canvas.clientHeight / 2;
      }
      this.select(id);
      this.clamp();
    }

    select(id) {
      this.selected = id;
      this.detail.replaceChildren();
      if (id < 0) this.field("span", "none here: click on one");
      else this.describe(id);
      this.later();
    }

    field(name, value) {
      const term = document.createElement("dt"), text = document.createElement("dd");
      term.textContent = name;
      if (value instanceof Node) text.append(value); else text.textContent = value;
      this.detail.append(term, text);
    }

    describe(id) {
      const {data, spans} = this, track = spans.track[id];
      const [op, chunks] = data.steps[track][spans.step[id]];
      const kind = ["receives", "sends", "local work"][spans.kind[id]];
      this.field("span", `${id} (${kind}${this.onPath.has(id) ? ", on the critical path" : ""})`);
      this.field("where", data.tracks[track].join(", "));
      this.field("step", `${spans.step[id]}: ${op} ${chunks}`);
      this.field("bytes", `${spans.size[id]} in iteration ${spans.iteration[id]}`);
      this.field("start", us(spans.start[id]));
      this.field("end", `${us(this.end(id))} (${us(spans.length[id])} long)`);
      if (spans.arrival[id] >= 0) this.field("arrival", us(spans.arrival[id]));
      if (spans.link[id] >= 0) this.field("link", data.links[spans.link[id]]);
      const before = spans.wait[id];
      if (before < 0) { this.field("waited for", data.whys[0]); return; }
      const button = document.createElement("button");
      const owner = before < spans.track.length
        ? `, ${data.tracks[spans.track[before]].join(" ")} step ${spans.step[before]}` : "";
      button.textContent = `${data.whys[spans.why[id]]}: span ${before}${owner}`;
      button.addEventListener("click", () => this.show(before));
      this.field("waited for", button);
    }

    colours() {
      const style = getComputedStyle(document.documentElement);
      const names = ["paper", "ink", "quiet", "line", "panel", "receive", "send", "work", "path"];
      return Object.fromEntries(names.map((n) => [n, style.getPropertyValue("--" + n).trim()]));
    }

    draw() {
      const {canvas, pen} = this, width = canvas.clientWidth, height = canvas.clientHeight;
      if (!width || !height) return;
      const dots = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
      pen.setTransform(dots, 0, 0, dots, 0, 0);
      const colour = this.colours();
      pen.fillStyle = colour.paper;
      pen.fillRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const first = Math.max(0, Math.floor(this.top / ROW));
      const last = Math.min(this.rows.length, Math.ceil((this.top + height - AXIS) / ROW));
      for (let track = first; track < last; track++) this.drawRow(track, width, colour);
      this.drawSelected(width, colour);
      for (let track = first; track < last; track++) this.drawLabel(track, width, colour);
      this.drawAxis(width, colour);
    }

    drawRow(track, width, colour) {
      const {pen, rows, spans} = this, row = rows[track], y = this.y(track);
      const fills = [colour.receive, colour.send, colour.work];
      const until = this.left + this.span;
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
        pen.fillRect(x, y + 2, Math.max(wide - 0.5, 1), ROW - 5);
        if (marked) {
          pen.fillStyle = colour.path;
          pen.fillRect(x, y + ROW - 4, Math.max(wide, 1), 3);
        }
        if (wide > 34) {
          pen.fillStyle = colour.paper;
          pen.fillText(this.data.steps[track][spans.step[id]][0], x + 4, y + ROW / 2);
        }
      }
    }

    drawSelected(width, colour) {
      const {pen, spans, selected} = this;
      if (selected < 0) return;
      const x = this.x(spans.start[selected]), y = this.y(spans.track[selected]);
      pen.strokeStyle = colour.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x, y + 1, Math.max(this.x(this.end(selected)) - x, 2), ROW - 3);
      const before = spans.wait[selected];
      if (before < 0 || before >= spans.start.length) return;
      pen.lineWidth = 1;
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(this.x(spans.start[before]), this.y(spans.track[before]) + ROW / 2);
      pen.lineTo(x, y + ROW / 2);
      pen.stroke();
      pen.setLineDash([]);
    }

    drawLabel(track, width, colour) {
      const {pen, data} = this, y = this.y(track), [rank, label] = data.tracks[track];
      const newRank = track === 0 || data.tracks[track - 1][0] !== rank;
      pen.fillStyle = colour.panel;
      pen.fillRect(0, y, GUTTER, ROW);
      pen.fillStyle = colour.line;
      if (newRank) pen.fillRect(0, y, width, 1);
      pen.fillRect(GUTTER - 1, y, 1, ROW);
      pen.save();
      pen.beginPath();
      pen.rect(0, y, GUTTER - 4, ROW);
      pen.clip();
      pen.fillStyle = colour.ink;
      if (newRank || y < AXIS + ROW) pen.fillText(rank, 6, y + ROW / 2);
      pen.fillStyle = colour.quiet;
      pen.fillText(label, 58, y + ROW / 2);
      pen.restore();
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

  const views = JSON.parse(document.getElementById("data").textContent);
  const sections = [...document.querySelectorAll("section[data-view]")];
  sections.forEach((section, number) => {
    if (views[number]) new Timeline(section, views[number]);
  });
  const choice = document.getElementById("choice");
  if (choice) {
    const choose = () => sections.forEach((s, n) => { s.hidden = n !== Number(choice.value); });
    choice.addEventListener("change", choose);
    choose();
  }
})();
