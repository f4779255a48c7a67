// The form, the list of jobs, and the details of one. Text from elsewhere is only ever set as text.
import { Viewer } from "/viewer.js";

const $ = (id) => document.getElementById(id);
const token = document.querySelector("meta[name=form-token]").content;
const viewer = new Viewer($("canvas"), $("tile"));
let shown = new URLSearchParams(location.hash.slice(1)).get("job");
let stream, again;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function post(path, body) {
  const response = await fetch(path, { method: "POST", headers: { "x-form-token": token }, body });
  const text = await response.text();
  if (!response.ok) throw new Error(text || response.statusText);
  return text;
}

// Progress.

function listen() {
  clearTimeout(again);
  stream?.close();
  // A hidden page needs no news, and a browser has few connections to one server.
  if (document.hidden) return;
  stream = new EventSource("/events" + (shown ? "?job=" + encodeURIComponent(shown) : ""));
  stream.addEventListener("open", () => { $("connection").textContent = ""; });
  stream.addEventListener("error", () => {
    $("connection").textContent = "Connection lost; trying again.";
    // A refusal closes the stream for good.
    if (stream.readyState === EventSource.CLOSED) refused();
  });
  stream.addEventListener("overview", (event) => overview(JSON.parse(event.data)));
  stream.addEventListener("job", (event) => detail(JSON.parse(event.data)));
}

async function refused() {
  const answer = await fetch("/icon.svg", { method: "HEAD" }).catch(() => null);
  // Another server has other sessions, so that trying again is in vain.
  clearTimeout(again);
  if (answer?.status !== 401) return void (again = setTimeout(listen, 3000));
  $("connection").textContent =
    "This browser is not logged in any more. Open the link that the program printed when it started.";
}

document.addEventListener("visibilitychange", listen);

function show(id) {
  shown = id;
  history.replaceState(null, "", id ? "#" + new URLSearchParams({ job: id }) : "#");
  listen();
}

function overview({ jobs, figures, problem }) {
  $("connection").textContent = problem ? "The storage does not answer: " + problem : "";
  list(jobs);
  const part = figures.transactions ? Math.round(100 * figures.empty_receives / figures.transactions) : 0;
  $("cost").textContent =
    `${figures.transactions.toLocaleString("en")} storage transactions of this process, ${part} % of them empty receives: ` +
    `${figures.cost} (${figures.prices})`;
  $("roles").replaceChildren(...figures.roles.map((role) => element("li",
    `${role.queue}: ${role.tasks} tasks, ${role.in_flight} in flight, ${role.completed} done` +
    (role.retried ? `, ${role.retried} retried` : "") + (role.poisoned ? `, ${role.poisoned} poison` : ""))));
  if (!shown && jobs.length) show(jobs[0].id);
}

// Changes the list in place: an element that is replaced loses the focus, and the click that is under way.
function list(jobs) {
  const known = new Map([...$("jobs").children].map((item) => [item.firstChild.dataset.job, item]));
  const items = jobs.map((job) => {
    const item = known.get(job.id) ?? line(job.id);
    known.delete(job.id);
    const button = item.firstChild;
    button.ariaCurrent = String(job.id === shown);
    const [name, state, when, client, progress] = button.children;
    name.textContent = job.name;
    [state.textContent, state.className] = [word(job), job.state];
    when.textContent = job.submitted.replace("T", " ").replace("Z", "");
    client.textContent = job.client;
    progress.hidden = !job.slices || ["done", "failed"].includes(job.state);
    [progress.max, progress.value] = [job.slices ?? 1, job.done];
    return item;
  });
  for (const gone of known.values()) gone.remove();
  items.forEach((item, at) => {
    const there = $("jobs").children[at];
    if (there !== item) $("jobs").insertBefore(item, there ?? null);
  });
}

function line(id) {
  const button = element("button");
  button.type = "button";
  button.dataset.job = id;
  button.append(element("span", "", "name"), element("span"), element("span", "", "when"));
  button.append(element("span", "", "when name"), element("progress"));
  button.addEventListener("click", () => show(id));
  const item = element("li");
  item.append(button);
  return item;
}

const word = ({ state, done, slices }) => state === "rendering" ? `${done} of ${slices}` : state;

function detail(job) {
  $("job").hidden = !job;
  $("empty").hidden = Boolean(job);
  if (!job) return;
  $("name").textContent = job.name;
  $("state").className = job.state;
  $("state").textContent = describe(job);
  $("download").hidden = job.state !== "done";
  $("download").href = `/jobs/${encodeURIComponent(job.id)}/mosaic`;
  $("canvas").ariaLabel = `The mosaic ${job.name}: ${describe(job)}`;
  const finished = new Map(job.finished.map((slice) => [slice.slice, slice]));
  $("slices").replaceChildren(...Array.from({ length: job.slices ?? 0 }, (_, at) => slice(at, finished.get(at))));
  viewer.show(job, finished);
}

function describe(job) {
  const size = job.view ? `${job.view.width}×${job.view.height} pixels, ` : "";
  const tiles = `${size}${job.across} tiles across, tint ${job.tint}`;
  switch (job.state) {
    case "failed": return "Failed: " + job.reason;
    case "done": return `Done: ${tiles}; ${job.slices} slices, ${job.attempts} attempts`;
    case "rendering": return `${job.done} of ${job.slices} slices rendered; ${tiles}`;
    case "joining": return `All ${job.slices} slices rendered, joining them; ${tiles}`;
    default: return `Waiting for a controller; ${tiles}`;
  }
}

function slice(at, found) {
  if (!found) return element("li", `slice ${at + 1}`);
  if (found.reason !== null) return element("li", `slice ${at + 1}: ${found.reason}`, "failed");
  const again = found.attempts > 1 ? `, attempt ${found.attempts}` : "";
  return element("li", `slice ${at + 1}: ${(found.millis / 1000).toFixed(2)} s by ${found.by}${again}`, "done");
}

// The form.

const form = $("new");

const ownPicture = $("file-name").textContent;

function choose(files) {
  $("file-name").textContent = files[0]?.name ?? ownPicture;
  // Not by `form.elements.scene.value`, which finds no radio button whose value is empty.
  if (files.length) $("drop").querySelector("[name=scene]").checked = true;
}

$("file").addEventListener("change", () => choose($("file").files));
for (const kind of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") {
      $("file").files = event.dataTransfer.files;
      choose($("file").files);
    }
  });
}
form.elements.tint.addEventListener("input", () => { $("tint-shown").textContent = form.elements.tint.value; });

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  $("problem").textContent = "";
  const asked = new URLSearchParams();
  for (const name of ["tiles", "across", "tile_size", "slices", "tint"]) asked.set(name, form.elements[name].value);
  const [scene, file] = [form.elements.scene.value, $("file").files[0]];
  if (scene) asked.set("scene", scene);
  else if (!file) return void ($("problem").textContent = "Choose a picture first.");
  asked.set("name", scene || file.name);
  $("make").disabled = true;
  $("make").textContent = "Taking the picture in…";
  try {
    const { id } = JSON.parse(await post("/jobs?" + asked, scene ? undefined : file));
    show(id);
  } catch (error) {
    $("problem").textContent = String(error.message);
  } finally {
    $("make").disabled = false;
    $("make").textContent = "Make the mosaic";
  }
});

$("another").addEventListener("click", async () => {
  try {
    prompt("This link logs another browser of this machine in, once:", await post("/links"));
  } catch (error) {
    $("problem").textContent = String(error.message);
  }
});

listen();
