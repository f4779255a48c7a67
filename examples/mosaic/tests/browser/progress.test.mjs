// How a mosaic comes about, as the page shows it.
import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";

import {
  PICTURE, done, drawn, eventually, make, opacities, picture, scenario, shown, state, still, text,
} from "./support.mjs";

const slices = (page) => page.locator("#slices li").allTextContents();

scenario("slices appear one by one, and the mosaic can be downloaded", async (stage) => {
  const server = await stage.hold({ pace: "300ms" });
  const page = await stage.open(server.link, { viewport: PICTURE });
  assert.match(await page.textContent("#empty"), /Choose a picture/);
  const id = await make(page, { scene: "sunset", across: 100, tileSize: 20, slices: 12 });
  await state(page, /^0 of 12 slices rendered; 2000×1340 pixels, 100 tiles across, tint 0.5$/);
  await still(page);
  const waiting = await drawn(page);
  await server.others();
  await state(page, /^([6-9]|1\d) of 12 slices/);
  await picture(page, "rendering");
  await state(page, /^11 of 12 slices/);
  assert.equal(await page.textContent("#jobs .rendering"), "11 of 12");
  const progress = page.locator("#jobs progress");
  assert.deepEqual(await progress.evaluate((bar) => [bar.value, bar.max]), [11, 12]);
  const missing = (await slices(page)).flatMap((text, at) => (/: /.test(text) ? [] : [at]));
  assert.equal(missing.length, 1);
  for (const [at, text] of (await slices(page)).entries()) {
    if (at !== missing[0]) assert.match(text, new RegExp(`^slice ${at + 1}: \\d+\\.\\d\\d s by worker-2$`));
  }
  // The canvas shows just these slices, and the source picture where the last one is missing.
  const open = (opaque) => opaque.flatMap((alpha, at) => (alpha === 255 ? [] : [at]));
  await eventually(async () => String(open(await opacities(page))) === String(missing));
  assert.ok((await opacities(page))[missing[0]] > 0, "the source picture is not behind the slices");
  assert.notEqual(await drawn(page), waiting);
  assert.ok(await page.locator("#download").isHidden());

  await server.release();
  assert.match(await done(page), /^Done: 2000×1340 pixels, .*; 12 slices, 13 attempts$/);
  await eventually(async () => open(await opacities(page)).length === 0);
  assert.equal(await page.textContent("#jobs .done"), "done");
  assert.ok(await progress.isHidden());
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByText("Download").click()]);
  assert.equal(download.suggestedFilename(), `mosaic-${id}.png`);
  const saved = await readFile(await download.path());
  const folder = join(stage.data, "blobs", "imageoutput", id);
  const [part] = await readdir(folder);
  const stored = await readFile(join(folder, part));
  assert.ok(saved.equals(stored), "other bytes than the store's");
  assert.deepEqual([saved.toString("latin1", 1, 4), saved.readUInt32BE(16), saved.readUInt32BE(20)], ["PNG", 2000, 1340]);
});

scenario("a reload in the middle shows the same job to its end", async (stage) => {
  const server = await stage.hold();
  const page = await stage.open(server.link);
  const id = await make(page, { scene: "night", across: 40, tileSize: 8, slices: 6 });
  await server.others();
  await state(page, /^5 of 6 slices/);
  await make(page, { scene: "mist" });
  await done(page);
  await page.locator(`[data-job="${id}"]`).click();
  await state(page, /^5 of 6 slices/);
  await page.reload();
  await state(page, /^5 of 6 slices/);
  assert.equal(shown(page), id);
  assert.equal(await page.textContent("#name"), "the lake: night");
  await server.release();
  await done(page);
});

scenario("a worker that is killed while the page watches is replaced", async (stage) => {
  const server = await stage.hold();
  const page = await stage.open(server.link);
  await make(page, { across: 40, tileSize: 8, slices: 6 });
  await server.others();
  await state(page, /^5 of 6 slices/);
  const [left] = (await slices(page)).filter((text) => !/: /.test(text));
  await server.release();
  assert.match(await done(page), /; 6 slices, 7 attempts$/);
  const again = (await slices(page)).filter((text) => /attempt/.test(text));
  assert.equal(again.length, 1);
  assert.match(again[0], new RegExp(`^${left}: \\d+\\.\\d\\d s by worker-2, attempt 2$`));
});

scenario("earlier jobs are chosen with the keyboard and by clicks that take a while", async (stage) => {
  const server = await stage.hold();
  const page = await stage.open(server.link);
  const first = await make(page, { scene: "mist", across: 20, tileSize: 4, slices: 3 });
  await server.others();
  await state(page, /^2 of 3 slices/);
  const second = await make(page, { scene: "night", across: 40, tileSize: 4, slices: 8 });
  await done(page);
  await page.getByRole("button", { name: "Make the mosaic" }).focus();
  for (const job of [second, first]) {
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.dataset.job), job);
  }
  await page.keyboard.press("Enter");
  await text(page, "#name", /^the lake: mist$/);
  assert.equal(shown(page), first);
  const current = page.locator("#jobs [aria-current=true]");
  await current.filter({ hasText: "mist" }).waitFor();
  // News arrive while the button is pressed: the job that is not finished ends.
  const button = page.locator(`#jobs [data-job="${second}"]`);
  await button.hover();
  await page.mouse.down();
  await server.release();
  await text(page, `#jobs [data-job="${first}"] .done`, /done/);
  await page.mouse.up();
  await text(page, "#name", /^the lake: night$/);
  assert.equal(await page.evaluate(() => document.activeElement.dataset.job), second);
});
