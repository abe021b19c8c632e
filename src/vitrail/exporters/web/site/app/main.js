// The page: photos and the camera go to the engine, its results to bars, map and taught classes.
import { Camera } from "./camera.js";
import { Engine } from "./engine.js";
import { loadTexts, number, onLanguage, percent, switchLanguage, text } from "./language.js";
import { isOffline, prepareOffline } from "./offline.js";
import { announce, ownScores, showBars, taughtScores } from "./results.js";
import { clearStage, describeStage, setOpacity, showHeat, showImage, thumbnail } from "./stage.js";
import { Teacher } from "./teach.js";

const SHOWN_NAMES = 4;
const find = (id) => document.getElementById(id);

const state = {
  facts: null,
  engine: null,
  teacher: null,
  backend: null,
  result: null, // of the engine, for what is shown
  photo: null, // the Blob that is shown
  taught: false, // whether scores are those of the taught classes
  loading: "loading.start",
  share: 0,
};
const camera = new Camera();

await start();

async function start() {
  onLanguage(showTexts);
  await loadTexts();
  wire();
  await prepareOffline(() => notify(text("update.ready"), text("update.reload"), () => location.reload()));
  try {
    state.facts = await (await fetch("model.json")).json();
    listLayers();
    showTexts();
    state.engine = new Engine(showProgress);
    state.backend = await state.engine.open(state.facts);
  } catch (error) {
    const reason = error.message === "differs" ? text("loading.differs") : error.message;
    notify(text("loading.failed", { reason }));
    find("loading").hidden = true;
    return;
  }
  state.loading = null;
  state.teacher = new Teacher(state.facts, {
    learn,
    ask,
    changed: headChanged,
    shown: () => shown(),
    available: () => state.result !== null,
    complain: (words) => notify(words),
  });
  await state.teacher.restore();
  document.documentElement.dataset.ready = state.backend.backend;
  showTexts();
  if (state.photo) await showPhoto(state.photo);
  find("offline").hidden = !(await isOffline(state.facts, state.backend.backend));
}

function wire() {
  find("language").addEventListener("click", switchLanguage);
  find("file").addEventListener("change", ({ target }) => {
    if (target.files[0]) showPhoto(target.files[0]);
    target.value = "";
  });
  find("camera").addEventListener("click", toggleCamera);
  find("flip").addEventListener("click", () => camera.flip().catch(refuseCamera));
  for (const id of ["show", "layer"]) find(id).addEventListener("change", showAttention);
  find("opacity").addEventListener("input", showAttention);
  find("heads").addEventListener("change", ({ target }) => {
    state.taught = target.value === "taught";
    showResult();
  });
  document.addEventListener("paste", ({ clipboardData }) => {
    const file = [...clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file) showPhoto(file);
  });
  wireTabs();
  wireDrop();
}

function wireTabs() {
  const tabs = [find("tab-result"), find("tab-teach")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      find(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      const next = tabs[1 - place];
      choose(next);
      next.focus();
    });
  });
}

function wireDrop() {
  let depth = 0;
  const hover = (change) => {
    depth = Math.max(0, depth + change);
    find("drop").hidden = depth === 0;
  };
  document.addEventListener("dragenter", () => hover(1));
  document.addEventListener("dragleave", () => hover(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    hover(-depth);
    const [file] = event.dataTransfer.files;
    if (file) showPhoto(file);
  });
}

async function showPhoto(file) {
  stopCamera();
  state.photo = file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    notify(text("photo.bad", { name: file.name || text("photo.pasted") }));
    return;
  }
  if (!state.facts) return; // it is shown when the model is there
  showHeat(null);
  find("live").hidden = true;
  showImage(bitmap, bitmap.width, bitmap.height, state.facts.preprocessing);
  bitmap.close();
  describeStage(text("stage.shown"));
  if (state.loading) return;
  find("stage").classList.add("busy");
  try {
    const result = await state.engine.infer(file, file);
    if (state.photo === file) setResult(result);
  } catch (error) {
    notify(text("photo.bad", { name: file.name || text("photo.pasted") }));
  } finally {
    find("stage").classList.remove("busy");
  }
}

async function toggleCamera() {
  if (camera.running) {
    stopCamera();
    return;
  }
  if (!navigator.mediaDevices) {
    notify(text("camera.insecure"));
    return;
  }
  try {
    await camera.start();
  } catch (error) {
    refuseCamera(error);
    return;
  }
  state.photo = null;
  showHeat(null);
  find("live").hidden = true;
  describeStage(text("stage.camera"));
  showTexts();
  find("flip").hidden = !(await camera.several());
  camera.follow((video) => {
    if (state.facts) showImage(video, video.videoWidth, video.videoHeight, state.facts.preprocessing);
  });
  watch();
}

// One frame after the other, as fast as the model answers.
async function watch() {
  while (camera.running) {
    if (state.loading || !camera.video.videoWidth || document.hidden) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      continue;
    }
    const result = await state.engine.infer(await createImageBitmap(camera.video), "camera");
    if (camera.running) setResult(result);
  }
}

function refuseCamera(error) {
  stopCamera();
  notify(text("camera.refused", { reason: error.message }));
}

function stopCamera() {
  if (!camera.running) return;
  camera.stop();
  find("flip").hidden = true;
  if (!state.result) clearStage();
  showTexts();
}

function setResult(result) {
  state.result = result;
  find("notice").hidden = true;
  find("attention").hidden = !result.maps.length;
  state.teacher.showAvailable(true);
  showResult();
  showAttention();
}

function showResult() {
  const { result, facts, teacher } = state;
  const taught = state.taught && teacher?.solved;
  let rows = [];
  if (result && taught) rows = taughtScores(result.features, teacher.solved);
  else if (result?.logits) rows = ownScores(result.logits, facts);
  showBars(find("bars"), rows);
  find("note").hidden = !(rows.length && taught);
  find("empty").hidden = rows.length > 0 || state.loading !== null;
  find("empty").textContent = text(facts?.classes || taught ? "result.empty" : "result.untaught");
  find("timing").hidden = !result;
  showNow();
  if (!result) return;
  find("run-ms").textContent = text("timing.ms", { value: number(result.run, result.run < 10 ? 1 : 0) });
  find("prepare-ms").textContent = text("timing.ms", { value: number(result.prepare, result.prepare < 10 ? 1 : 0) });
  if (rows.length) announce(find("said"), rows[0], camera.running);
  find("live").hidden = !rows.length;
  find("live").classList.toggle("still", !camera.running);
  if (rows.length) find("live").textContent = `${rows[0].label}  ${rows[0].shown}`;
}

// The best taught class of what is shown, beside the classes themselves.
function showNow() {
  const { result, teacher } = state;
  find("now").hidden = !(result && teacher?.solved);
  if (find("now").hidden) return;
  const [best] = taughtScores(result.features, teacher.solved);
  find("now").querySelector("b").textContent = text("result.said", { label: best.label, score: best.shown });
}

function showAttention() {
  const chosen = state.result?.maps.find(({ name }) => name === find("layer").value);
  setOpacity(find("opacity").value / 100);
  showHeat(find("show").checked ? chosen : null);
}

function headChanged() {
  const solved = state.teacher?.solved ?? null;
  const had = !find("heads").hidden;
  const own = state.facts.classes > 0;
  find("heads").hidden = !(solved && own);
  if (solved && (!had || !own)) state.taught = true;
  if (!solved) state.taught = false;
  document.querySelector(`[name=head][value=${state.taught ? "taught" : "own"}]`).checked = true;
  showResult();
}

// The feature of a photo to teach, and a small picture of it.
async function learn(file) {
  const [bitmap, result] = await Promise.all([createImageBitmap(file), state.engine.infer(file, file)]);
  const picture = await thumbnail(bitmap);
  bitmap.close();
  return { feature: result.features, picture };
}

// The same of what is shown: the photo, or the camera's frame of this moment.
async function shown() {
  if (!camera.running) return state.result && { feature: state.result.features, picture: await thumbnail() };
  const picture = await thumbnail();
  const result = await state.engine.infer(await createImageBitmap(camera.video), "taught");
  return { feature: result.features, picture };
}

function ask(question) {
  const dialog = find("ask");
  find("question").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function notify(words, label = "×", act = null) {
  const notice = find("notice");
  const [message, old] = notice.children;
  const button = old.cloneNode();
  message.textContent = words;
  button.textContent = label;
  button.addEventListener("click", () => {
    notice.hidden = true;
    act?.();
  });
  old.replaceWith(button);
  notice.hidden = false;
}

function showProgress({ share, opening }) {
  state.loading = opening ? "loading.open" : "loading.model";
  state.share = share ?? 1;
  showLoading();
}

function showLoading() {
  const loading = find("loading");
  loading.hidden = state.loading === null;
  if (!state.loading) return;
  loading.querySelector("p").textContent = text(state.loading, { share: percent(state.share, 0) });
  if (state.loading === "loading.model") loading.querySelector("progress").value = state.share;
  else loading.querySelector("progress").removeAttribute("value");
}

function listLayers() {
  const layers = find("layer");
  layers.replaceChildren(...state.facts.maps.map(({ name }) => new Option("", name)));
}

// Everything that is written by code, in the chosen language.
function showTexts() {
  const { facts, backend } = state;
  find("camera").textContent = text(camera.running ? "camera.stop" : "camera.start");
  find("camera").classList.toggle("stop", camera.running);
  showLoading();
  if (!facts) return;
  for (const option of find("layer").options) {
    const name = option.value.replace(/^maps\./, "");
    option.textContent = name === "rollout" ? text("attention.rollout") : name;
  }
  find("about").textContent = about(facts);
  find("made").textContent = text("footer.made", { version: facts.version, runtime: facts.runtime });
  if (backend) {
    const wasm = backend.threads > 1 ? "backend.threads" : "backend.wasm";
    const key = backend.backend === "webgpu" ? "backend.webgpu" : wasm;
    find("backend").textContent = text(key, { count: backend.threads });
  }
  state.teacher?.show();
  showResult();
}

function about(facts) {
  const family = facts.title;
  if (!facts.classes) return text("about.features", { family });
  const names = facts.labels ?? Array.from({ length: facts.classes }, (_, place) => `class ${place}`);
  const shown = names.length > SHOWN_NAMES + 2 ? names.slice(0, SHOWN_NAMES) : names;
  const rest = { names: shown.join(", "), count: names.length - shown.length };
  const listed = rest.count ? text("about.more", rest) : rest.names;
  return text("about.classes", { family, count: names.length, names: listed });
}
