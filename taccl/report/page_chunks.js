/* Where each chunk is: ranks by chunks, at a time that the reader chooses. Of many chunks several
   that follow one another share a column, so that the map fits; a reader may take it apart. */
const CHUNK_GUTTER = 70, MAX_LISTED = 200, MIN_COLUMN = 8, MAX_COLUMN = 28;

class Chunks {
  constructor(section, data, timeline) {
    this.data = data;
    this.where = data.where;
    this.spans = data.spans;
    this.timeline = timeline;
    this.box = section.querySelector(".chunks");
    this.canvas = this.box.querySelector("canvas");
    this.window = this.canvas.parentElement;
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
    this.offerSlices(this.box.querySelector("select.slices"));
    this.offerColumns(this.box.querySelector("select.each"));
    this.listen();
    this.follow(0);
  }

  offerSlices(select) {
    const last = this.spans.iteration.reduce((most, each) => Math.max(most, each), 0);
    select.parentElement.hidden = last === 0;
    for (let slice = 0; slice <= last; slice++) select.add(new Option(slice, slice));
    select.addEventListener("change", () => this.follow(Number(select.value)));
  }

  /* How many chunks may share a column: powers of two, from what a canvas can hold on. */
  offerColumns(select) {
    const room = (this.box.clientWidth || 1100) - CHUNK_GUTTER - 2;
    const fits = (each, pixels) => Math.ceil(this.width / each) * MIN_COLUMN <= pixels;
    this.each = 0;
    for (let each = 1; each < 2 * this.width; each *= 2) {
      if (!fits(each, MAX_PIXELS)) continue;
      select.add(new Option(each, each));
      if (!this.each && fits(each, room)) this.each = each;
    }
    this.each = this.each || Number(select.options[select.length - 1].value);
    select.value = this.each;
    select.parentElement.hidden = select.length < 2;
    select.addEventListener("change", () => {
      this.each = Number(select.value);
      this.picked = null;
      this.list.replaceChildren();
      this.draw();
    });
  }

  listen() {
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.window.addEventListener("scroll", () => this.draw());
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
    this.held = this.heldNow();
    this.flying = this.flyingNow();
    this.draw();
  }

  /* The most sources of each chunk that some cell of each rank holds, now. */
  heldNow() {
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
  flyingNow() {
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
    const {canvas, pen, width, ranks, each, flying} = this;
    const room = this.box.clientWidth, columns = Math.ceil(width / each);
    if (!room) return;
    const wide = Math.floor((room - CHUNK_GUTTER - 2) / columns);
    this.wide = Math.max(MIN_COLUMN, Math.min(MAX_COLUMN, wide));
    this.high = Math.max(12, Math.min(18, Math.floor(480 / ranks)));
    canvas.style.width = CHUNK_GUTTER + this.wide * columns + "px";
    canvas.style.height = AXIS + this.high * ranks + 1 + "px";
    const colour = colours(), inner = [this.wide - 1, this.high - 1];
    clear(canvas, pen, colour);
    let there = 0;
    for (let rank = 0; rank < ranks; rank++) {
      for (let column = 0; column < columns; column++) {
        const cell = this.cell(rank, column);
        there += cell.there;
        if (!cell.share && !cell.wanted && !cell.flying) continue;
        const x = CHUNK_GUTTER + column * this.wide, y = AXIS + rank * this.high;
        pen.fillStyle = colour.line;
        if (cell.wanted) pen.fillRect(x, y, ...inner);
        pen.fillStyle = cell.parts ? colour.work : colour.send;
        pen.globalAlpha = 0.25 + 0.75 * cell.share;
        if (cell.share) pen.fillRect(x, y, ...inner);
        pen.globalAlpha = 1;
        pen.fillStyle = colour.receive;
        if (cell.flying) pen.fillRect(x, y + this.high - 4, inner[0], 3);
      }
    }
    this.drawNames(colour, columns);
    this.status.textContent = `step ${this.at} of ${this.times.length - 1}, ${us(this.now)}:`
      + ` ${there} of ${this.numWanted} wanted chunks are there, ${flying.count} messages fly`;
    if (this.picked) this.describe();
  }

  /* The chunks of a column at a rank: how many are wanted, and of these whole and there; whether
     some are on their way or parts of a sum; and which share of all that is to be there is. */
  cell(rank, column) {
    const {width, each, held, flying, wanted} = this, full = this.where.full;
    const found = {wanted: 0, there: 0, flying: false, parts: false, share: 0};
    const last = Math.min(width, (column + 1) * each);
    let some = 0, asked = 0;
    for (let chunk = column * each; chunk < last; chunk++) {
      const place = rank * width + chunk, share = held[place] / full[chunk];
      found.flying = found.flying || flying.places.has(place);
      found.parts = found.parts || (share > 0 && share < 1);
      some += share;
      if (!wanted[place]) continue;
      found.wanted += 1;
      found.there += share === 1 ? 1 : 0;
      asked += share;
    }
    /* A chunk that only passes through counts where nothing of the column is wanted. */
    found.share = found.wanted ? Math.max(asked / found.wanted, some ? 0.01 : 0)
      : some / (last - column * each);
    return found;
  }

  /* The names of ranks and chunks, at the edge of what is seen of the map. */
  drawNames(colour, columns) {
    const {pen} = this, left = this.window.scrollLeft, top = this.window.scrollTop;
    pen.fillStyle = colour.paper;
    pen.fillRect(left, 0, CHUNK_GUTTER - 1, this.canvas.clientHeight);
    pen.fillStyle = colour.ink;
    for (let rank = 0; rank < this.ranks; rank++) {
      pen.fillText(`rank ${rank}`, left + 6, AXIS + (rank + 0.5) * this.high);
    }
    pen.fillStyle = colour.paper;
    pen.fillRect(left, top, this.canvas.clientWidth, AXIS - 1);
    pen.fillStyle = colour.quiet;
    pen.fillText("chunk", left + 6, top + AXIS / 2);
    const apart = Math.ceil(44 / this.wide);
    for (let column = 0; column < columns; column += apart) {
      const x = CHUNK_GUTTER + column * this.wide;
      if (x >= left + CHUNK_GUTTER) pen.fillText(column * this.each, x, top + AXIS / 2);
    }
    if (!this.picked) return;
    pen.strokeStyle = colour.ink;
    pen.lineWidth = 2;
    pen.strokeRect(CHUNK_GUTTER + this.picked.column * this.wide,
      AXIS + this.picked.rank * this.high, this.wide, this.high);
  }

  pick(x, y) {
    const column = Math.floor((x - CHUNK_GUTTER) / this.wide);
    const rank = Math.floor((y - AXIS) / this.high), columns = Math.ceil(this.width / this.each);
    const inside = column >= 0 && column < columns && rank >= 0 && rank < this.ranks;
    this.picked = inside ? {rank, column} : null;
    this.list.replaceChildren();
    this.draw();
  }

  /* What is known of the chosen chunks at the chosen rank, and all their moves as buttons. */
  describe() {
    const {rank, column} = this.picked, first = column * this.each;
    const last = Math.min(first + this.each, this.width) - 1;
    this.list.replaceChildren();
    if (first === last) {
      const place = rank * this.width + first, full = this.where.full[first];
      const count = this.held[place];
      const share = full > 1 && count < full ? `${count} of ${full} sources` : "all of it";
      field(this.list, "chunk", `${first}: ${this.where.names[first]}`);
      field(this.list, `at rank ${rank}`, (count ? share : "not there")
        + (this.wanted[place] ? ", wanted in the end" : ""));
    } else {
      const cell = this.cell(rank, column);
      field(this.list, "chunks", `${first} to ${last}`);
      field(this.list, `at rank ${rank}`, `${cell.there} of ${cell.wanted} wanted chunks are there`);
    }
    const moves = this.writes.map((id) => this.move(id, first, last)).filter((move) => move);
    this.listMoves("came here by", moves.filter((move) => move.to === rank));
    this.listMoves(first === last ? "all its moves" : "all their moves", moves);
  }

  move(id, first, last) {
    const {where, spans} = this, track = spans.track[id];
    const codes = this.moved(id, 1).codes.filter((code) => {
      const chunk = Math.floor(code / where.base);
      return first <= chunk && chunk <= last;
    });
    if (!codes.length) return null;
    const [code] = codes, full = where.full[Math.floor(code / where.base)];
    const count = code % where.base;
    const from = spans.kind[id] === RECEIVES || where.sent ? where.senders[track] : -1;
    const how = from < 0 ? "in memory" : `from rank ${from}`;
    const many = codes.length > 1 ? `, ${codes.length} chunks` : "";
    const part = (full > 1 ? ` (${count} of ${full} sources)` : "") + many;
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
