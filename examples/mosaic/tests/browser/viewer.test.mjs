// Looking at a mosaic: zoom, parts and tiles.
import assert from "node:assert/strict";

import { PICTURE, done, drawn, drawnAfter, eventually, make, picture, scenario, still, text } from "./support.mjs";

// Starts a server with a finished mosaic of 4800×3192 pixels in 16 slices, each of which has 5 parts at full size.
const SLICES = 16;
const PARTS = 5 * SLICES;
async function finished(stage, options) {
  const { link } = await stage.serve();
  const page = await stage.open(link, options);
  const requests = [];
  page.on("request", (request) => requests.push(new URL(request.url()).pathname));
  await make(page, { across: 200, tileSize: 24 });
  assert.match(await done(page), /^Done: 4800×3192 pixels/);
  return { page, requests };
}

// Turns the wheel over a point of the page, until the page has seen it all.
async function wheel(page, [x, y], turns) {
  await page.locator("#canvas").evaluate((canvas) => {
    window.turned = 0;
    canvas.addEventListener("wheel", ({ deltaY }) => { window.turned += deltaY; });
  });
  await page.mouse.move(x, y);
  for (let turn = 0; turn < turns; turn++) await page.mouse.wheel(0, -200);
  await page.waitForFunction((all) => window.turned === all, -200 * turns);
  await still(page);
}

const parts = (requests, level) =>
  new Set(requests.filter((path) => path.includes(`/parts/${level ?? ""}`))).size;

scenario("wheel, buttons, keys and dragging change what is shown, of which only parts are loaded", async (stage) => {
  const { page, requests } = await finished(stage);
  await still(page);
  const whole = await drawn(page);
  const canvas = page.getByRole("img", { name: /^The mosaic the lake: sunset: Done/ });
  const { x, y, width, height } = await canvas.boundingBox();
  await wheel(page, [x + width / 2, y + height / 3], 7);
  const near = await drawn(page);
  assert.notEqual(near, whole);
  const fine = parts(requests, "0/");
  assert.ok(fine > 0 && fine < PARTS / 2, `${fine} of ${PARTS} parts`);
  // Parts at full size are loaded from half of that size on, and only those on the canvas then.
  const fitted = Math.min(width / 4800, height / 3192);
  const [left, top] = [2400 - width / 2 / 0.5, 3192 / 2 - (height / 6) / fitted - height / 3 / 0.5];
  for (const path of requests) {
    const [, slice, column] = /\/parts\/0\/(\d+)\/(\d+)$/.exec(path) ?? [];
    if (slice === undefined) continue;
    // Slices differ by a row of tiles.
    const isOn = (at, size, from, length) => (at + 1) * size + 24 >= from && at * size - 24 <= from + length / 0.5;
    assert.ok(isOn(Number(column), 1024, left, width) && isOn(Number(slice), 3192 / SLICES, top, height), path);
  }
  assert.deepEqual(requests.filter((path) => path.endsWith("/mosaic")), []);

  await page.mouse.down();
  await page.mouse.move(x + width / 2 + 90, y + height / 3 + 40, { steps: 3 });
  await page.mouse.up();
  await drawnAfter(page, near);
  await canvas.press("0");
  await still(page);
  assert.equal(await drawn(page), whole, "`0` shows all");
  for (const [one, other] of [["+", "-"], ["ArrowLeft", "ArrowRight"], ["ArrowUp", "ArrowDown"]]) {
    const before = await drawn(page);
    await canvas.press(one);
    await drawnAfter(page, before);
    const after = await drawn(page);
    await canvas.press(other);
    await drawnAfter(page, after);
  }
  for (const name of ["Zoom in", "Zoom out"]) {
    const before = await drawn(page);
    await page.getByRole("button", { name }).click();
    await drawnAfter(page, before);
  }
  await page.getByRole("button", { name: "Show all" }).click();
  await still(page);
  assert.equal(await drawn(page), whole, "the button shows all");
  assert.ok(parts(requests, "0/") < PARTS / 2);
  assert.deepEqual(requests.filter((path) => path.endsWith("/mosaic")), []);
});

scenario("pointing at a tile shows its picture and name", async (stage) => {
  const { page } = await finished(stage, { colorScheme: "dark", viewport: PICTURE });
  const canvas = page.locator("#canvas");
  const { x, y, width, height } = await canvas.boundingBox();
  const around = [width / 2, height / 3];
  await wheel(page, [x + around[0], y + around[1]], 4);
  // Where a tile is: the mosaic was in the middle, and has grown around the pointer.
  const size = (await page.textContent("#state")).match(/(\d+)×(\d+) pixels/).slice(1).map(Number);
  const fitted = Math.min(width / size[0], height / size[1]);
  const grown = 2 ** ((4 * 200) / 300);
  const centre = (place) => [width, height].map((length, axis) => {
    const at = (length - size[axis] * fitted) / 2 + (place[axis] - 0.5) * 24 * fitted;
    return around[axis] + (at - around[axis]) * grown;
  });
  const tile = page.locator("#tile");
  for (const place of [[101, 44], [103, 48], [108, 40]]) {
    const [left, top] = centre(place);
    await page.mouse.move(x + left, y + top);
    await text(page, "#tile figcaption", new RegExp(`^[a-z]+-\\d+, column ${place[0]}, row ${place[1]}$`));
    await tile.waitFor({ state: "visible" });
    await eventually(() => tile.locator("img").evaluate((img) => img.complete && img.naturalWidth > 0));
  }
  await picture(page, "dark");
  await page.mouse.move(x + width / 2, y - 20);
  await tile.waitFor({ state: "hidden" });
});
