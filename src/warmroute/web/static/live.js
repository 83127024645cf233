// The router's own events: figures each second without asking. Where they do not come, the page asks (polling.js).

const SILENT_AFTER_MS = 4_000;
const AGAIN_AFTER_MS = 3_000;
const AGAIN_AT_MOST_MS = 60_000;

export class Live {
  /** `uses` has a function for each event's name, `fail` is given what one of them threw. */
  constructor(path, uses, fail) {
    Object.assign(this, { path, uses, fail, source: null, timer: 0, heardAtMs: -Infinity, waitMs: AGAIN_AFTER_MS });
    document.addEventListener("visibilitychange", () => this.follow());
    this.follow();
  }

  /** Whether events come, so that nothing needs to be asked for. */
  get flows() {
    return performance.now() - this.heardAtMs < SILENT_AFTER_MS;
  }

  follow() {
    if (document.hidden) this.stop();
    else if (this.source === null) this.start();
  }

  start() {
    clearTimeout(this.timer);
    this.source = new EventSource(this.path);
    for (const [name, use] of Object.entries(this.uses)) {
      this.source.addEventListener(name, (event) => this.take(use, event.data));
    }
    this.source.onerror = () => this.again();
  }

  take(use, data) {
    try {
      use(JSON.parse(data));
    } catch (error) {
      this.fail(error);
      this.again();
      return;
    }
    this.heardAtMs = performance.now();
    this.waitMs = AGAIN_AFTER_MS;
  }

  /** Close, and try it again after a time that grows. */
  again() {
    this.stop();
    this.timer = setTimeout(() => this.follow(), this.waitMs);
    this.waitMs = Math.min(AGAIN_AT_MOST_MS, this.waitMs * 2);
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.heardAtMs = -Infinity;
  }
}
