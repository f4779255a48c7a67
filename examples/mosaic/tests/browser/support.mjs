// Starts the program and a browser for a test, ends both, and looks for what went wrong in the pages.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";

const { MOSAIC, PLAYWRIGHT, CHROMIUM, PICTURES } = process.env;
const { chromium } = await import(pathToFileURL(PLAYWRIGHT));
const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
// Far more than anything takes: a test that waits in vain fails, and no other does.
const PATIENCE = 120_000;

let browser;
before(async () => { browser = await chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS }); });
after(() => browser?.close());

// Processes do not outlive the tests, also if these are interrupted.
const processes = new Set();
process.on("exit", () => processes.forEach((child) => child.kill("SIGKILL")));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

// A test with a folder and pages of its own.
export function scenario(name, body) {
  test(name, { timeout: 2 * PATIENCE }, async () => {
    const stage = await Stage.set();
    try {
      await body(stage);
      stage.assertNothingWentWrong();
    } catch (error) {
      await stage.tellMore(name);
      throw error;
    } finally {
      await stage.clear();
    }
  });
}

export class Stage {
  static async set() {
    const stage = new Stage();
    stage.folder = await mkdtemp(join(tmpdir(), "mosaic-browser-"));
    stage.data = join(stage.folder, "data");
    [stage.children, stage.contexts, stage.pages, stage.wrong] = [[], [], [], []];
    return stage;
  }

  // Runs the program on the folder.
  run(...words) {
    const log = openSync(join(this.folder, "log"), "a");
    const child = spawn(MOSAIC, [...words, "--data", this.data], { stdio: ["ignore", "pipe", log] });
    closeSync(log);
    processes.add(child);
    child.ended = new Promise((resolve) => child.once("exit", (code, signal) => {
      processes.delete(child);
      resolve(signal ?? code);
    }));
    this.children.push(child);
    return child;
  }

  // Runs `mosaic serve`, and returns its process, its origin and the link that it printed.
  async serve({ port = 0, words = [] } = {}) {
    const child = this.run("serve", "--port", String(port), "--client-id", "broker", ...words);
    const link = await new Promise((found, failed) => {
      let said = "";
      child.stdout.on("data", (text) => {
        said += text;
        const link = /^open (\S+) \(works once\)$/m.exec(said);
        if (link) found(link[1]);
      });
      child.ended.then((how) => failed(new Error(`the server has ended: ${how}`)));
    });
    return { child, link, origin: new URL(link).origin };
  }

  // Runs all roles as processes. One slice stays unfinished, until `release` kills the processor that has it.
  async hold({ pace = "0s" } = {}) {
    const server = await this.serve({ words: ["--broker-only"] });
    this.run("role", "controller");
    const holder = this.run(
      "role", "processor", "--client-id", "worker-1", "--tasks", "1", "--pace", "1h", "--visibility-timeout", "10s");
    // To be called when a job is submitted.
    const others = async () => {
      await this.rendered();
      this.run("role", "processor", "--client-id", "worker-2", "--tasks", "1", "--pace", pace);
    };
    const release = async () => {
      holder.kill("SIGKILL");
      assert.equal(await holder.ended, "SIGKILL");
    };
    return { ...server, others, release };
  }

  // Waits until a slice is rendered, which a processor writes before its pause.
  async rendered() {
    const folder = join(this.data, "blobs", "sliceresponse");
    await eventually(async () => {
      const files = await readdir(folder, { recursive: true }).catch(() => []);
      return files.some((file) => file.endsWith(".png"));
    });
  }

  // Opens a browser without cookies. What is `expected` to go wrong is matched against the texts of `watch`.
  async browser({ expected = [], ...options } = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
    this.contexts.push(context);
    context.setDefaultTimeout(PATIENCE);
    const page = await context.newPage();
    this.pages.push(page);
    this.watch(page, expected);
    return page;
  }

  watch(page, expected) {
    const wrong = (text) => {
      if (!expected.some((one) => one.test(text))) this.wrong.push(text);
    };
    page.on("console", (said) => {
      // The tests read the canvas more often than the page, which does not.
      if (/willReadFrequently/.test(said.text())) return;
      if (["error", "warning"].includes(said.type())) wrong(`console: ${said.text()} ${said.location().url}`);
    });
    page.on("pageerror", (error) => wrong(`error: ${error.stack ?? error}`));
    page.on("response", async (answer) => {
      if (answer.status() < 400) return;
      const text = await answer.text().catch(() => "");
      wrong(`${answer.status()} ${answer.request().method()} ${answer.url()} ${text}`);
    });
    page.on("requestfailed", (request) => {
      const why = request.failure()?.errorText;
      // That is the page's own doing: it closes the stream, or is left.
      if (why !== "net::ERR_ABORTED") wrong(`failed: ${why} ${request.url()}`);
    });
  }

  // Logs a new browser in.
  async open(link, options) {
    const page = await this.browser(options);
    await page.goto(link);
    await page.locator("#cost").filter({ hasText: "transactions" }).waitFor();
    return page;
  }

  assertNothingWentWrong() {
    assert.deepEqual(this.wrong, []);
  }

  async tellMore(name) {
    for (const [at, page] of this.pages.entries()) {
      const path = join(PICTURES, `failed ${name} ${at + 1}.png`);
      await page.screenshot({ path, timeout: 5_000 }).catch(() => {});
    }
    if (this.wrong.length) console.error(this.wrong);
    console.error(await readFile(join(this.folder, "log"), "utf8").catch(String));
  }

  async clear() {
    for (const context of this.contexts) await context.close().catch(() => {});
    for (const child of this.children) child.kill("SIGKILL");
    await Promise.all(this.children.map((child) => child.ended));
    await rm(this.folder, { recursive: true, force: true });
  }
}

// Waits until something holds, whatever time that takes.
export async function eventually(holds) {
  const end = Date.now() + PATIENCE;
  while (!(await holds())) {
    assert.ok(Date.now() < end, `waited in vain: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// Waits until the text of an element matches, and returns it.
export async function text(page, selector, pattern) {
  const matching = ([selector, source]) => {
    const text = document.querySelector(selector)?.textContent ?? "";
    return new RegExp(source).test(text) && text;
  };
  try {
    const found = await page.waitForFunction(matching, [selector, pattern.source], { timeout: PATIENCE });
    return await found.jsonValue();
  } catch (error) {
    const now = await page.locator(selector).allTextContents().catch(() => []);
    throw new Error(`${selector} is ${JSON.stringify(now)}, not ${pattern}`, { cause: error });
  }
}

export const state = (page, pattern) => text(page, "#state", pattern);
export const done = (page) => state(page, /^Done: /);
export const shown = (page) => new URLSearchParams(new URL(page.url()).hash.slice(1)).get("job");

// Fills the form in and submits it; returns the id of the job.
export async function make(page, { scene, across, tileSize, tint, slices, tiles } = {}) {
  const form = page.getByRole("form", { name: "New mosaic" });
  const before = shown(page);
  if (scene) await form.getByRole("radio", { name: scene }).check({ force: true });
  if (tiles) await form.getByRole("combobox", { name: "Tiles" }).selectOption({ label: tiles });
  if (across) await form.getByLabel("Tiles across").fill(String(across));
  if (tileSize) await form.getByLabel("Tile size").fill(String(tileSize));
  if (tint !== undefined) await form.getByLabel("Tint").fill(String(tint));
  if (slices) {
    if (!(await form.getByLabel("Slices").isVisible())) await form.getByText("More").click();
    await form.getByLabel("Slices").fill(String(slices));
  }
  await form.getByRole("button", { name: "Make the mosaic" }).click();
  await page.waitForFunction((before) => {
    const shown = new URLSearchParams(location.hash.slice(1)).get("job");
    return shown && shown !== before;
  }, before);
  return shown(page);
}

// What the canvas shows.
export const drawn = (page) => page.locator("#canvas").evaluate((canvas) => canvas.toDataURL());

// Waits until all that the canvas shows is there.
export const still = (page) => page.locator("#canvas[aria-busy=false]").waitFor({ state: "attached", timeout: PATIENCE });

// Waits until the canvas shows something else.
export async function drawnAfter(page, before) {
  const isOther = (before) => document.querySelector("#canvas").toDataURL() !== before;
  await page.waitForFunction(isOther, before, { timeout: PATIENCE, polling: 100 });
  await still(page);
}

// How opaque the canvas is in the middle of each slice, from 0 to 255, while all of the mosaic is shown. The source
// picture, which is behind slices that are not there yet, is translucent.
export async function opacities(page) {
  const [, width, height] = (await page.textContent("#state")).match(/(\d+)×(\d+) pixels/).map(Number);
  const slices = await page.locator("#slices li").count();
  return page.locator("#canvas").evaluate((canvas, [width, height, slices]) => {
    const scale = Math.min(canvas.width / width, canvas.height / height);
    const y = (at) => (canvas.height - height * scale) / 2 + ((at + 0.5) / slices) * height * scale;
    const pixel = (at) => canvas.getContext("2d").getImageData(canvas.width / 2, y(at), 1, 1).data;
    return Array.from({ length: slices }, (_, at) => pixel(at)[3]);
  }, [width, height, slices]);
}

// The size of a page of which a picture is taken for the documentation.
export const PICTURE = { width: 1080, height: 740 };
export const picture = (page, name) =>
  page.screenshot({ path: join(PICTURES, `page-${name}.jpg`), type: "jpeg", quality: 75, scale: "css" });
