// Shows a mosaic, at every scale, of pictures that are loaded as they are needed: the source picture, and parts of the
// slices that are rendered, at the scale that is looked at.

// Of parts. The overview, of the last level, stays.
const MAX_PARTS = 400;
const MAX_LOADING = 6;

export class Viewer {
  constructor(canvas, tile) {
    [this.canvas, this.tile] = [canvas, tile];
    [this.job, this.view, this.pictures] = [null, null, new Map()];
    [this.loading, this.waiting, this.answers] = [0, [], new Map()];
    this.place = { x: 0, y: 0, scale: 1 };
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(canvas);
    const on = (kind, handler) => canvas.addEventListener(kind, handler.bind(this), { passive: false });
    on("pointerdown", this.down);
    on("pointermove", this.move);
    on("pointerup", this.up);
    on("pointercancel", this.up);
    on("pointerleave", this.hideTile);
    on("wheel", this.wheel);
    on("keydown", this.key);
    canvas.parentElement.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
      const kind = button.dataset.zoom;
      if (kind === "all") this.fit();
      else this.zoom(kind === "in" ? 1.6 : 1 / 1.6);
    }));
  }

  show(job, finished) {
    const isOther = this.job?.id !== job.id;
    if (isOther) {
      this.pictures.clear();
      this.waiting = [];
      this.view = null;
      this.forget();
      this.hideTile();
    }
    [this.job, this.finished] = [job, finished];
    this.base = `/jobs/${encodeURIComponent(job.id)}`;
    if (job.view && !this.view) {
      this.view = job.view;
      this.rows = Math.round(job.view.height / job.tile_size);
      this.fit();
    }
    this.draw();
  }

  // Where what is shown.

  resize() {
    const ratio = devicePixelRatio;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    if (this.fitted) this.fit();
    else this.draw();
  }

  fit() {
    if (!this.view) return;
    const { width, height } = this.canvas;
    const scale = Math.min(width / this.view.width, height / this.view.height);
    this.place = { scale, x: (width - this.view.width * scale) / 2, y: (height - this.view.height * scale) / 2 };
    this.fitted = true;
    this.draw();
  }

  zoom(factor, x = this.canvas.width / 2, y = this.canvas.height / 2) {
    if (!this.view) return;
    const smallest = Math.min(this.canvas.width / this.view.width, this.canvas.height / this.view.height) / 2;
    const scale = Math.min(Math.max(this.place.scale * factor, smallest), 8);
    const by = scale / this.place.scale;
    this.place = { scale, x: x - (x - this.place.x) * by, y: y - (y - this.place.y) * by };
    this.moved();
  }

  pan(dx, dy) {
    this.place.x += dx;
    this.place.y += dy;
    this.moved();
  }

  moved() {
    this.fitted = false;
    this.waiting = [];
    this.draw();
  }

  // Drawing.

  draw() {
    if (this.scheduled) return;
    this.scheduled = true;
    this.tell();
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.paint();
      this.tell();
    });
  }

  // Says whether more of what is looked at is to come.
  tell() {
    this.canvas.ariaBusy = String(Boolean(this.scheduled || this.loading || this.waiting.length));
  }

  paint() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.view) return;
    const { x, y, scale } = this.place;
    const { width, height, levels, tops } = this.view;
    context.setTransform(scale, 0, 0, scale, x, y);
    context.imageSmoothingEnabled = scale < 2;
    // The finest level that shows more than the screen; the last one, of which little is to load, is always below it.
    const level = Math.max(0, Math.min(levels - 1, Math.floor(Math.log2(1 / scale))));
    const source = this.job.done < this.job.slices && this.picture(`${this.base}/source`);
    if (source) {
      context.globalAlpha = 0.28;
      context.drawImage(source, 0, 0, width, height);
      context.globalAlpha = 1;
    }
    tops.forEach((top, slice) => {
      const found = this.finished.get(slice);
      if (!found || found.reason !== null) return;
      const [from, to] = [top, tops[slice + 1] ?? this.rows].map((row) => row * this.job.tile_size);
      this.parts(context, levels - 1, slice, from, to);
      const isSeen = y + to * scale > 0 && y + from * scale < this.canvas.height;
      if (level < levels - 1 && isSeen) this.parts(context, level, slice, from, to);
    });
  }

  // Draws the parts of a slice at a level; of the last level all, of others those that are seen.
  parts(context, level, slice, from, to) {
    const { x, scale } = this.place;
    const { width, side, levels } = this.view;
    const step = side * 2 ** level;
    const all = level === levels - 1;
    const left = all ? 0 : Math.max(0, Math.floor(-x / scale / step));
    const right = Math.min(Math.ceil(width / step), all ? Infinity : Math.ceil((this.canvas.width - x) / scale / step));
    for (let column = left; column < right; column++) {
      const part = this.picture(`${this.base}/parts/${level}/${slice}/${column}`);
      if (part) context.drawImage(part, column * step, from, Math.min(step, width - column * step), to - from);
    }
  }

  // Returns a picture, or loads it and draws again.
  picture(url) {
    const found = this.pictures.get(url);
    if (found) {
      // The least recently used is the first.
      this.pictures.delete(url);
      this.pictures.set(url, found);
      return typeof found === "string" ? null : found;
    }
    if (!this.waiting.includes(url)) this.waiting.push(url);
    this.load();
    return null;
  }

  async load() {
    while (this.loading < MAX_LOADING && this.waiting.length) {
      const url = this.waiting.shift();
      this.loading++;
      this.pictures.set(url, "loading");
      this.fetch(url).then((picture) => {
        this.loading--;
        // A job that is not shown any more has made room for the one that is.
        if (!url.startsWith(this.base + "/")) return void this.load().then(() => this.tell());
        this.pictures.set(url, picture);
        if (picture === "failed") setTimeout(() => { this.pictures.delete(url); this.draw(); }, 3000);
        this.evict();
        this.draw();
        this.load();
      });
    }
  }

  evict() {
    const overview = `/parts/${this.view?.levels - 1}/`;
    const parts = [...this.pictures.keys()].filter((url) => url.includes("/parts/") && !url.includes(overview));
    for (const oldest of parts.slice(0, Math.max(0, parts.length - MAX_PARTS))) this.pictures.delete(oldest);
  }

  // Returns a picture, or that it failed, or that there is none: it was removed.
  async fetch(url) {
    try {
      const response = await fetch(url);
      if (response.status === 404) return "missing";
      return response.ok ? await createImageBitmap(await response.blob()) : "failed";
    } catch {
      return "failed";
    }
  }

  // Tiles.

  async point(event) {
    const { x, y, scale } = this.place;
    const job = this.job;
    if (!this.view || !job) return;
    const [at, down] = [event.offsetX * devicePixelRatio, event.offsetY * devicePixelRatio];
    const [column, row] = [(at - x) / scale, (down - y) / scale].map((pixel) => Math.floor(pixel / job.tile_size));
    const slice = this.view.tops.findLastIndex((top) => top <= row);
    const isOn = column >= 0 && column < job.across && row >= 0 && row < this.rows && this.finished.has(slice);
    const wanted = isOn ? `${job.id} ${column} ${row}` : null;
    if (wanted === this.wanted) return void this.putTile(event);
    this.wanted = wanted;
    if (!isOn) return void this.hideTile();
    const tile = await this.tileAt(slice, (row - this.view.tops[slice]) * job.across + column);
    if (wanted !== this.wanted) return;
    if (!tile) return void (this.tile.hidden = true);
    this.tile.querySelector("img").src = tile.url;
    this.tile.querySelector("figcaption").textContent = `${tile.name}, column ${column + 1}, row ${row + 1}`;
    this.tile.hidden = false;
    this.putTile(event);
  }

  async tileAt(slice, at) {
    try {
      const places = await this.remembered(`${this.base}/places/${slice}`, (response) => response.json());
      const url = `${this.base}/tiles/${places[at]}`;
      return await this.remembered(url, async (response) => ({
        name: decodeURIComponent(response.headers.get("x-tile-name") ?? ""),
        url: URL.createObjectURL(await response.blob()),
      }));
    } catch {
      return null;
    }
  }

  remembered(url, read) {
    if (!this.answers.has(url)) {
      const answer = fetch(url).then((response) => {
        if (!response.ok) throw new Error(response.statusText);
        return read(response);
      });
      answer.catch(() => this.answers.delete(url));
      this.answers.set(url, answer);
    }
    return this.answers.get(url);
  }

  forget() {
    for (const answer of this.answers.values()) answer.then(({ url }) => URL.revokeObjectURL(url), () => {});
    this.answers.clear();
  }

  putTile(event) {
    const { clientWidth, clientHeight } = this.canvas;
    const put = (at, size, length) => Math.max(4, at + 20 + size > length ? at - size - 20 : at + 20) + "px";
    this.tile.style.left = put(event.offsetX, this.tile.offsetWidth, clientWidth);
    this.tile.style.top = put(event.offsetY, this.tile.offsetHeight, clientHeight);
  }

  hideTile() {
    this.wanted = null;
    this.tile.hidden = true;
  }

  // Pointers and keys.

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event);
  }

  up(event) {
    this.pointers.delete(event.pointerId);
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return void this.point(event);
    this.hideTile();
    const ratio = devicePixelRatio;
    const other = [...this.pointers.values()].find((one) => one.pointerId !== event.pointerId);
    this.pointers.set(event.pointerId, event);
    if (!other) return this.pan((event.offsetX - before.offsetX) * ratio, (event.offsetY - before.offsetY) * ratio);
    const apart = (one) => Math.hypot(one.offsetX - other.offsetX, one.offsetY - other.offsetY) || 1;
    const middle = [event.offsetX + other.offsetX, event.offsetY + other.offsetY].map((sum) => sum / 2 * ratio);
    this.zoom(apart(event) / apart(before), ...middle);
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    this.zoom(2 ** (-event.deltaY * lines / 300), event.offsetX * devicePixelRatio, event.offsetY * devicePixelRatio);
    this.point(event);
  }

  key(event) {
    const step = 60 * devicePixelRatio;
    const keys = {
      ArrowLeft: () => this.pan(step, 0),
      ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step),
      ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoom(1.6),
      "=": () => this.zoom(1.6),
      "-": () => this.zoom(1 / 1.6),
      0: () => this.fit(),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
}
