/* The heat map of links: from which rank to which how much went, and how long it held its edge. */
class Traffic {
  constructor(section, data) {
    this.rows = data.traffic;
    this.time = Math.max(data.time || 0, 1);
    this.box = section.querySelector(".traffic");
    this.canvas = this.box.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.status = this.box.querySelector(".status");
    this.ranks = 1 + this.rows.reduce((most, [src, dst]) => Math.max(most, src, dst), 0);
    this.rowOf = new Map(this.rows.map((row) => [row[0] * this.ranks + row[1], row]));
    this.size = Math.max(8, Math.min(28, Math.floor(560 / this.ranks)));
    const side = CHUNK_GUTTER + this.size * this.ranks + 1 + "px";
    this.canvas.style.width = side;
    this.canvas.style.height = side;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.tell(event.offsetX, event.offsetY));
    this.canvas.addEventListener("click", (event) => this.tell(event.offsetX, event.offsetY));
  }

  draw() {
    const {canvas, pen, size, ranks} = this, colour = colours();
    if (!canvas.clientWidth) return;
    clear(canvas, pen, colour);
    pen.fillStyle = colour.panel;
    pen.fillRect(CHUNK_GUTTER, CHUNK_GUTTER, size * ranks, size * ranks);
    for (const [src, dst, , , held] of this.rows) {
      pen.fillStyle = `hsl(${Math.round(210 * (1 - Math.min(held / this.time, 1)))} 70% 45%)`;
      pen.fillRect(CHUNK_GUTTER + dst * size, CHUNK_GUTTER + src * size, size - 1, size - 1);
    }
    pen.fillStyle = colour.ink;
    const each = Math.ceil(12 / size);
    for (let rank = 0; rank < ranks; rank += each) {
      const middle = CHUNK_GUTTER + rank * size + size / 2;
      pen.fillText(`rank ${rank}`, 6, middle);
      pen.save();
      pen.translate(middle, CHUNK_GUTTER - 6);
      pen.rotate(-Math.PI / 2);
      pen.fillText(`to ${rank}`, 0, 0);
      pen.restore();
    }
  }

  tell(x, y) {
    const [dst, src] = [x, y].map((each) => Math.floor((each - CHUNK_GUTTER) / this.size));
    const inside = Math.min(src, dst) >= 0 && Math.max(src, dst) < this.ranks;
    if (!inside) return;
    const row = this.rowOf.get(src * this.ranks + dst);
    const pair = `rank ${src} to rank ${dst}: `;
    if (!row) { this.status.textContent = pair + "nothing"; return; }
    const [, , messages, bytes, held, edge] = row, share = (100 * held / this.time).toFixed(1);
    const busy = edge ? `, which keep edge ${edge} busy for ${us(held)} (${share}% of the time)` : "";
    this.status.textContent = `${pair}${bytes} bytes in ${messages} messages${busy}`;
  }
}
