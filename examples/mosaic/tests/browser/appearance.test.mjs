// The page in the dark, on a phone, and without a mouse.
import assert from "node:assert/strict";

import { done, drawn, drawnAfter, make, picture, scenario, state, still } from "./support.mjs";

scenario("a dark scheme is followed", async (stage) => {
  const { link } = await stage.serve();
  const page = await stage.open(link, { colorScheme: "dark" });
  const brightness = (property) => page.evaluate((property) => {
    const [red, green, blue] = getComputedStyle(document.body)[property].match(/\d+/g).map(Number);
    return (red + green + blue) / 3;
  }, property);
  assert.ok((await brightness("backgroundColor")) < 60);
  assert.ok((await brightness("color")) > 180);
  await page.emulateMedia({ colorScheme: "light" });
  assert.ok((await brightness("backgroundColor")) > 200);
  assert.ok((await brightness("color")) < 80);
});

scenario("a phone shows the form and the stage without scrolling to the side", async (stage) => {
  const { link } = await stage.serve();
  const phone = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };
  const page = await stage.open(link, phone);
  const fits = async () => {
    const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide <= 390 && screen === 390, `${wide} of ${screen} pixels`);
  };
  await fits();
  await page.locator("#make").scrollIntoViewIfNeeded();
  assert.ok(await page.locator("#make").isVisible());
  await make(page, { across: 80, tileSize: 16 });
  await done(page);
  await fits();
  await page.evaluate(() => scrollTo(0, 0));
  for (const selector of ["#stage", "#new"]) {
    const { x, width, height } = await page.locator(selector).boundingBox();
    assert.ok(x >= 0 && x + width <= 390 && width > 300 && height > 150, selector);
  }
  const { y, height } = await page.locator("#stage").boundingBox();
  assert.ok(y + height < 844, "the stage is not on the first screen");
  await still(page);
  await picture(page, "phone");

  // Two fingers that move apart zoom in.
  const before = await drawn(page);
  const session = await page.context().newCDPSession(page);
  const fingers = (type, ...apart) => session.send("Input.dispatchTouchEvent", {
    type, touchPoints: apart.map((by, id) => ({ x: 195 + by, y: y + height / 2, id })),
  });
  await fingers("touchStart", -20, 20);
  for (const by of [40, 60, 80]) await fingers("touchMove", -by, by);
  await fingers("touchEnd");
  await drawnAfter(page, before);
  await fits();
});

scenario("every control has a name and is reached with Tab", async (stage) => {
  const { link } = await stage.serve();
  const page = await stage.open(link);
  await make(page, { across: 20, tileSize: 4, slices: 2 });
  await done(page);
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  const controls = nodes.filter(({ ignored, role }) =>
    !ignored && /^(button|link|textbox|spinbutton|slider|combobox|radio|checkbox|DisclosureTriangle|image)$/.test(role?.value));
  const names = controls.map(({ role, name }) => `${role.value} ${name?.value ?? ""}`);
  for (const wanted of [
    "button Open in another browser", "radio sunset", "spinbutton Tiles across", "slider Tint", "button Make the mosaic",
    "button Zoom in", "button Zoom out", "button Show all", "link Download",
  ]) assert.ok(names.some((name) => name.startsWith(wanted)), `${wanted} is not in ${names.join("; ")}`);
  assert.deepEqual(names.filter((name) => /^\w+ $/.test(name)), []);

  // Of radio buttons, Tab reaches the one that is checked.
  const count = await page.evaluate(() => {
    const controls = document.querySelectorAll("button, input, select, summary, a[href], [tabindex]");
    const visible = [...controls].filter((one) => one.checkVisibility() && (one.type !== "radio" || one.checked));
    visible.forEach((one, at) => { one.dataset.control = String(at); });
    return visible.length;
  });
  assert.ok(count > 12, `${count} controls`);
  const reached = new Set();
  await page.evaluate(() => document.activeElement?.blur());
  for (let tab = 0; tab < 2 * count; tab++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => document.activeElement.dataset.control);
    if (at !== undefined) reached.add(at);
  }
  const unreached = Array.from({ length: count }, (_, at) => String(at)).filter((at) => !reached.has(at));
  const what = await page.evaluate((all) => all.map((at) => document.querySelector(`[data-control="${at}"]`).outerHTML), unreached);
  assert.deepEqual(what, []);
  await state(page, /^Done/);
});
