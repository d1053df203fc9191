/* Where each chunk is: ranks by chunks, at a time that the reader chooses. */
const CHUNK_GUTTER = 70, MAX_LISTED = 200;

class Chunks {
  constructor(section, data, timeline) {
    this.data = data;
    this.where = data.where;
    this.spans = data.spans;
    this.timeline = timeline;
    this.box = section.querySelector(".chunks");
    this.canvas = this.box.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.slider = this.box.querySelector("input");
    this.status = this.box.querySelector(".status");
    this.list = this.box.querySelector("dl");
    this.ranks = this.where.num_ranks;
    this.width = this.where.names.length;
    this.wanted = new Uint8Array(this.ranks * this.width);
    this.where.wanted.forEach((ranks, chunk) => {
      for (const rank of ranks) this.wanted[rank * this.width + chunk] = 1;
    });
    this.numWanted = this.wanted.reduce((sum, each) => sum + each, 0);
    this.picked = null;
    this.playing = null;
    this.offerSlices(this.box.querySelector("select"));
    this.listen();
    this.follow(0);
  }

  offerSlices(select) {
    const last = this.spans.iteration.reduce((most, each) => Math.max(most, each), 0);
    select.parentElement.hidden = last === 0;
    for (let slice = 0; slice <= last; slice++) select.add(new Option(slice, slice));
    select.addEventListener("change", () => this.follow(Number(select.value)));
  }

  listen() {
    new ResizeObserver(() => this.draw()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    for (const button of this.box.querySelectorAll("button[data-go]")) {
      button.addEventListener("click", () => this.act(button.dataset.go));
    }
    this.canvas.addEventListener("click", (event) => this.pick(event.offsetX, event.offsetY));
    this.canvas.addEventListener("keydown", (event) => {
      const what = {ArrowLeft: "back", ArrowRight: "on", Home: "first", End: "last"}[event.key];
      if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.act(what);
    });
  }

  act(what) {
    const last = this.times.length - 1;
    const goals = {first: 0, back: this.at - 1, on: this.at + 1, last};
    if (what === "play") this.play(); else this.go(goals[what]);
  }

  play() {
    const stop = this.playing !== null;
    clearInterval(this.playing);
    this.playing = null;
    if (stop) return;
    const last = this.times.length - 1, step = Math.max(1, Math.round(last / 200));
    if (this.at === last) this.go(0);
    this.playing = setInterval(() => {
      this.go(this.at + step);
      if (this.at === last) this.play();
    }, 60);
  }

  /* Take the writes and the messages of one slice of the chunks, in order of time. */
  follow(slice) {
    const {spans, where} = this;
    this.writes = [];
    this.flights = [];
    for (let id = 0; id < spans.track.length; id++) {
      if (spans.iteration[id] !== slice) continue;
      const sends = spans.kind[id] === SENDS;
      const [cells] = where.steps[spans.track[id]][spans.step[id]] || [[]];
      if (sends) this.flights.push(id);
      if (cells.length && sends === where.sent) this.writes.push(id);
    }
    this.writes.sort((a, b) => this.lands(a) - this.lands(b) || a - b);
    this.times = [this.data.launch];
    for (const id of this.writes) {
      if (this.lands(id) > this.times.at(-1)) this.times.push(this.lands(id));
    }
    this.slider.max = this.times.length - 1;
    this.go(0);
  }

  /* When what a span writes is there. */
  lands(id) {
    const {spans} = this;
    return this.where.sent ? spans.arrival[id] : spans.start[id] + spans.length[id];
  }

  /* What a span moves of the writes (1) or the sends (2) of its step. */
  moved(id, which) {
    const {spans} = this, [cells, ...codes] = this.where.steps[spans.track[id]][spans.step[id]];
    const from = spans.part[id], to = from + spans.parts[id];
    return {cells: cells.slice(from, to), codes: codes[which - 1].slice(from, to)};
  }

  go(at) {
    this.at = Math.max(0, Math.min(at, this.times.length - 1));
    this.now = this.times[this.at];
    this.slider.value = this.at;
    this.timeline.cursor = this.now || null;
    this.timeline.later();
    this.draw();
  }

  /* The most sources of each chunk that some cell of each rank holds, now. */
  held() {
    const {where, width, ranks} = this, base = where.base, best = new Uint16Array(ranks * width);
    const cells = new Int32Array(ranks * where.cells).fill(-1);
    for (const [rank, cell, code] of where.start) cells[rank * where.cells + cell] = code;
    for (const id of this.writes) {
      if (this.at === 0 || this.lands(id) > this.now) break;
      const rank = where.ranks[this.spans.track[id]], moved = this.moved(id, 1);
      moved.cells.forEach((cell, n) => { cells[rank * where.cells + cell] = moved.codes[n]; });
    }
    for (let place = 0; place < cells.length; place++) {
      if (cells[place] < 0) continue;
      const cell = Math.floor(place / where.cells) * width + Math.floor(cells[place] / base);
      best[cell] = Math.max(best[cell], cells[place] % base);
    }
    return best;
  }

  /* The places that messages are on their way to, now, and how many there are. */
  flying() {
    const {spans, where} = this, places = new Set();
    let count = 0;
    for (const id of this.flights) {
      if (spans.start[id] > this.now) break;
      if (spans.arrival[id] <= this.now) continue;
      count += 1;
      const rank = where.receivers[spans.track[id]];
      for (const code of this.moved(id, 2).codes) {
        if (code >= 0) places.add(rank * this.width + Math.floor(code / where.base));
      }
    }
    return {places, count};
  }

  draw() {
    const {canvas, pen, where, width, ranks} = this, room = this.box.clientWidth;
    if (!room) return;
    this.wide = Math.max(3, Math.min(28, Math.floor((room - CHUNK_GUTTER - 2) / width)));
    this.high = Math.max(8, Math.min(18, Math.floor(480 / ranks)));
    canvas.style.width = CHUNK_GUTTER + this.wide * width + "px";
    canvas.style.height = AXIS + this.high * ranks + 1 + "px";
    const colour = colours(), best = this.held(), flying = this.flying();
    clear(canvas, pen, colour);
    const inner = [this.wide - (this.wide > 5 ? 1 : 0), this.high - 1];
    let there = 0;
    for (let place = 0; place < best.length; place++) {
      const chunk = place % width, full = where.full[chunk], wanted = this.wanted[place];
      if (wanted && best[place] === full) there += 1;
      if (!best[place] && !wanted && !flying.places.has(place)) continue;
      const x = CHUNK_GUTTER + chunk * this.wide, y = AXIS + Math.floor(place / width) * this.high;
      pen.fillStyle = colour.line;
      if (wanted) pen.fillRect(x, y, ...inner);
      pen.fillStyle = best[place] === full ? colour.send : colour.work;
      pen.globalAlpha = 0.25 + 0.75 * best[place] / full;
      if (best[place]) pen.fillRect(x, y, ...inner);
      pen.globalAlpha = 1;
      pen.fillStyle = colour.receive;
      if (flying.places.has(place)) pen.fillRect(x, y + this.high - 4, inner[0], 3);
    }
    this.drawNames(colour);
    this.status.textContent = `step ${this.at} of ${this.times.length - 1}, ${us(this.now)}:`
      + ` ${there} of ${this.numWanted} wanted chunks are there, ${flying.count} messages fly`;
    if (this.picked) this.describe(best);
  }

  drawNames(colour) {
    const {pen} = this;
    pen.fillStyle = colour.quiet;
    pen.fillText(`${this.width} chunks`, CHUNK_GUTTER, AXIS / 2);
    pen.fillStyle = colour.ink;
    for (let rank = 0, free = 0; rank < this.ranks; rank++) {
      const y = AXIS + rank * this.high;
      if (y >= free) { pen.fillText(`rank ${rank}`, 6, y + this.high / 2); free = y + 11; }
    }
    if (!this.picked) return;
    pen.strokeStyle = colour.ink;
    pen.lineWidth = 2;
    pen.strokeRect(CHUNK_GUTTER + this.picked.chunk * this.wide,
      AXIS + this.picked.rank * this.high, this.wide, this.high);
  }

  pick(x, y) {
    const chunk = Math.floor((x - CHUNK_GUTTER) / this.wide);
    const rank = Math.floor((y - AXIS) / this.high);
    const inside = chunk >= 0 && chunk < this.width && rank >= 0 && rank < this.ranks;
    this.picked = inside ? {rank, chunk} : null;
    this.list.replaceChildren();
    this.draw();
  }

  /* What is known of the chosen chunk at the chosen rank, and all its moves as buttons. */
  describe(best) {
    const {rank, chunk} = this.picked, place = rank * this.width + chunk;
    const full = this.where.full[chunk], count = best[place];
    const share = full > 1 && count < full ? `${count} of ${full} sources` : "all of it";
    this.list.replaceChildren();
    field(this.list, "chunk", `${chunk}: ${this.where.names[chunk]}`);
    field(this.list, `at rank ${rank}`, (count ? share : "not there")
      + (this.wanted[place] ? ", wanted in the end" : ""));
    const moves = this.writes.map((id) => this.move(id, chunk)).filter((move) => move);
    this.listMoves("came here by", moves.filter((move) => move.to === rank));
    this.listMoves("all its moves", moves);
  }

  move(id, chunk) {
    const {where, spans} = this, track = spans.track[id];
    const code = this.moved(id, 1).codes.find((each) => Math.floor(each / where.base) === chunk);
    if (code === undefined) return null;
    const full = where.full[chunk], count = code % where.base;
    const from = spans.kind[id] === RECEIVES || where.sent ? where.senders[track] : -1;
    const how = from < 0 ? "in memory" : `from rank ${from}`;
    const part = full > 1 ? ` (${count} of ${full} sources)` : "";
    const to = where.ranks[track];
    return {id, to, text: `${us(this.lands(id))}: to rank ${to} ${how}${part}`};
  }

  listMoves(name, moves) {
    const box = document.createElement("div");
    box.className = "moves";
    for (const move of moves.slice(0, MAX_LISTED)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = move.text;
      button.addEventListener("click", () => this.timeline.show(move.id));
      box.append(button, " ");
    }
    if (!moves.length) box.append("none");
    if (moves.length > MAX_LISTED) box.append(`and ${moves.length - MAX_LISTED} more`);
    field(this.list, name, box);
  }
}
