// Who sees the page, and what becomes of it when its server ends.
import assert from "node:assert/strict";
import { createServer } from "node:net";

import { done, make, scenario, shown, state, text } from "./support.mjs";

const SMALL = { across: 24, tileSize: 8, slices: 4 };

scenario("a link logs one browser in, once", async (stage) => {
  const { link, origin } = await stage.serve();
  const stranger = await stage.browser({ expected: [/\b40[13]\b/] });
  for (const path of ["/", "/page.js", "/events", "/jobs/x/mosaic"]) {
    assert.equal((await stranger.goto(origin + path)).status(), 401, path);
    assert.match(await stranger.textContent("body"), /not logged in; open the link that the program printed/);
  }
  const page = await stage.open(link);
  assert.equal(page.url(), `${origin}/`);
  assert.equal((await stranger.goto(link)).status(), 403);
  assert.match(await stranger.textContent("body"), /the link was used before/);
  assert.equal((await stranger.goto(origin)).status(), 401);
  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.map(({ httpOnly, sameSite }) => [httpOnly, sameSite]), [[true, "Strict"]]);
  assert.equal(await page.evaluate(() => document.cookie), "", "a script can read the session");
});

scenario("a second browser sees the same job, live", async (stage) => {
  const server = await stage.hold();
  const one = await stage.open(server.link);
  const asked = new Promise((resolve) => one.once("dialog", async (dialog) => {
    resolve([dialog.type(), dialog.message(), dialog.defaultValue()]);
    await dialog.dismiss();
  }));
  await one.getByRole("button", { name: "Open in another browser" }).click();
  const [type, message, link] = await asked;
  assert.equal(type, "prompt");
  assert.match(message, /logs another browser of this machine in, once/);
  assert.notEqual(link, server.link);
  const other = await stage.open(link);
  await make(one, SMALL);
  await server.others();
  for (const page of [one, other]) await state(page, /^3 of 4 slices rendered/);
  assert.equal(shown(other), shown(one));
  await server.release();
  for (const page of [one, other]) await done(page);
});

scenario("a server that ends, and another one at its port", async (stage) => {
  const port = await free();
  const { child, link } = await stage.serve({ port });
  // A request may be on its way when the server closes the connection.
  const expected = [/ERR_(CONNECTION|INCOMPLETE|EMPTY|SOCKET_NOT_CONNECTED)|401/];
  const page = await stage.open(link, { expected });
  await make(page, SMALL);
  await done(page);
  const job = shown(page);
  child.kill("SIGTERM");
  assert.equal(await child.ended, 0);
  await text(page, "#connection", /^Connection lost; trying again/);
  await page.getByRole("button", { name: "Make the mosaic" }).click();
  await text(page, "#problem", /\S/);
  const again = await stage.serve({ port });
  await text(page, "#connection", /not logged in any more\. Open the link that the program printed/);
  await page.goto(again.link);
  await done(page);
  assert.equal(shown(page), job);
  assert.equal(await page.textContent("#connection"), "");
});

// A port that is free now, and not one of those that are given to who asks for any.
async function free() {
  for (let port = 20_000 + (process.pid % 10_000); ; port++) {
    const listening = await new Promise((resolve) => {
      const server = createServer();
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
    if (listening) return port;
  }
}
