// What the form sends, and what is refused.
import assert from "node:assert/strict";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

import { done, drawn, eventually, make, scenario, shown, state, text } from "./support.mjs";

const file = (name, buffer, mimeType = "image/png") => ({ name, mimeType, buffer: Buffer.from(buffer) });

// A PNG that the browser makes: red, with a blue circle.
async function png(page, width, height) {
  const url = await page.evaluate(([width, height]) => {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d");
    context.fillStyle = "#a02010";
    context.fillRect(0, 0, width, height);
    context.fillStyle = "#2040c0";
    context.arc(width / 2, height / 2, height / 3, 0, 7);
    context.fill();
    return canvas.toDataURL("image/png");
  }, [width, height]);
  return Buffer.from(url.split(",")[1], "base64");
}

// Drops a file on the form.
async function drop(page, name, picture) {
  const dataTransfer = await page.evaluateHandle(([name, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, { type: "image/png" }));
    return transfer;
  }, [name, picture.toString("base64")]);
  await page.locator("#drop").dispatchEvent("drop", { dataTransfer });
}

scenario("a picture is uploaded, with every setting changed", async (stage) => {
  const { link } = await stage.serve();
  const page = await stage.open(link, { expected: [/\b422\b/] });
  await page.getByLabel("A picture of yours").setInputFiles(file("été <co>.png", await png(page, 90, 60)));
  assert.equal(await page.textContent("#file-name"), "été <co>.png");
  await page.getByLabel("Tint").fill("0.85");
  assert.equal(await page.textContent("#tint-shown"), "0.85");
  await page.getByRole("button", { name: "Make the mosaic" }).click();
  await text(page, "#problem", /the name has the character '<'/);
  await drop(page, "été.png", await png(page, 90, 60));
  assert.equal(await page.textContent("#file-name"), "été.png");
  await make(page, { across: 30, tileSize: 10, tint: 0.85, slices: 5 });
  assert.equal(await done(page), "Done: 300×200 pixels, 30 tiles across, tint 0.85; 5 slices, 5 attempts");
  assert.equal(await page.textContent("#name"), "été.png");
  assert.equal(await page.textContent("#problem"), "");
  assert.equal(await page.locator("#slices .done").count(), 5);
  const roles = await page.locator("#roles li").allTextContents();
  assert.ok(roles.some((role) => /^slicerequest: \d+ tasks, 0 in flight, 5 done$/.test(role)), roles);
  assert.match(await page.textContent("#cost"), /^[\d,]+ storage transactions of this process, \d+ % of them empty/);
  await eventually(() => page.locator("#canvas").evaluate((canvas) => {
    // Blue in the middle, red beside.
    const [x, y] = [canvas.width / 2, canvas.height / 2];
    const mean = (left, top) => {
      const { data } = canvas.getContext("2d").getImageData(left - 20, top - 20, 40, 40);
      return [0, 2].map((channel) => data.filter((_, at) => at % 4 === channel).reduce((sum, one) => sum + one, 0));
    };
    const [[red, blue], [redBeside, blueBeside]] = [mean(x, y), mean(x - 0.45 * canvas.height, y - 0.45 * canvas.height)];
    return blue > red && redBeside > blueBeside;
  }));
});

scenario("what is no picture is refused in words, and the form can be used again", async (stage) => {
  const { link } = await stage.serve();
  const page = await stage.open(link, { expected: [/\b422\b/] });
  const picture = await png(page, 90, 60);
  const own = page.getByLabel("A picture of yours");
  const submit = page.getByRole("button", { name: "Make the mosaic" });
  const elements = () => page.locator("body *").count();
  // The file input covers it, so that only keys choose it without a file.
  await page.getByRole("radio", { name: /your own/ }).press(" ");
  await submit.click();
  assert.equal(await text(page, "#problem", /\S/), "Choose a picture first.");
  const before = await elements();
  const markup = '<img src=x onerror="document.title=1"><b id=injected>.png';
  for (const [given, expected] of [
    [file("notes.txt", "no picture at all", "text/plain"), /notes\.txt.*(format|decode|PNG)/],
    [file("dot.png", await png(page, 1, 1)), /the picture is 1×1 pixels; at least 16 a side are needed/],
    [file(markup, picture), /the name has the character/],
  ]) {
    await own.setInputFiles(given);
    assert.equal(await page.textContent("#file-name"), given.name);
    await submit.click();
    await text(page, "#problem", expected);
    await page.locator("#make:enabled").waitFor();
    assert.equal(await elements(), before, "an element was added");
    assert.equal(await page.title(), "Photo mosaics");
  }
  assert.equal(await page.locator("#jobs li").count(), 0);
  await own.setInputFiles(file("fine.png", picture));
  await make(page, { across: 10, tileSize: 4, slices: 2 });
  await done(page);
  assert.equal(await page.textContent("#problem"), "");
});

scenario("a job that fails says why, and the picture of another is gone", async (stage) => {
  const [broken, missing] = ["broken", "missing"].map((name) => join(stage.folder, name));
  await mkdir(broken);
  for (const name of ["a.png", "b.jpg"]) await writeFile(join(broken, name), "no picture");
  const { link } = await stage.serve({ words: ["--library", broken, "--library", missing] });
  const page = await stage.open(link, { expected: [/\b422\b/] });
  const blank = await drawn(page);
  await make(page, { across: 20, tileSize: 8, slices: 2 });
  await done(page);
  await eventually(async () => (await drawn(page)) !== blank);
  const picture = await png(page, 90, 60);
  await page.getByLabel("A picture of yours").setInputFiles(file("cut.png", picture.subarray(0, 60)));
  const cut = await make(page);
  await state(page, /^Failed: the source picture "cut\.png" cannot be used: the picture is damaged/);
  assert.equal(await page.textContent(`[data-job="${cut}"] .failed`), "failed");
  assert.ok(await page.locator("#download").isHidden());
  const isClear = () => page.locator("#canvas").evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return !data.some((value, at) => at % 4 === 3 && value === 255);
  });
  await eventually(isClear);
  for (const [tiles, expected] of [[broken, /^none of the 2 tiles can be used; the first is "a\.png": /], [missing, /missing/]]) {
    await page.getByRole("combobox", { name: "Tiles" }).selectOption({ label: tiles });
    await page.getByRole("button", { name: "Make the mosaic" }).click();
    await text(page, "#problem", expected);
    await page.locator("#make:enabled").waitFor();
  }
  assert.equal(shown(page), cut);
});
