// The page: photos and the camera go to the engine, its results to bars, map and few-shot classes.
import { Camera } from "./camera.js";
import { Engine } from "./engine.js";
import { FewShotPanel } from "./fewshot_panel.js";
import { loadTexts, number, onLanguage, percent, switchLanguage, text } from "./language.js";
import { confirm, dismiss, notify } from "./messages.js";
import { isOffline, onStored, prepareOffline } from "./offline.js";
import { announce, fewShotScores, ownScores, showBars } from "./results.js";
import { clearStage, describeStage, setOpacity, showHeat, showImage, thumbnail } from "./stage.js";

const SHOWN_NAMES = 4;
const find = (id) => document.getElementById(id);
const reload = () => location.reload();

const state = {
  facts: null,
  engine: null,
  fewShot: null,
  backend: null,
  chosen: null, // the Blob that was chosen last, which may still be decoded
  photo: null, // the Blob that is shown
  computing: false, // whether the result of what is shown is on its way
  result: null, // of the engine, for what is shown
  useFewShot: false, // whether scores are those of the few-shot classes
  loading: "loading.start",
  share: 0,
};
const camera = new Camera();

await start();

async function start() {
  onLanguage(showTexts);
  await loadTexts();
  wire();
  await prepareOffline(() => notify(text("update.ready"), { label: text("update.reload"), act: reload }));
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
  const page = { embed, embedShown, canEmbedShown, confirm, notify, notifyFailure, headChanged };
  state.fewShot = new FewShotPanel(state.facts, page);
  await state.fewShot.restore();
  document.documentElement.dataset.ready = state.backend.backend;
  showTexts();
  onStored(showOffline);
  await showOffline();
  if (state.chosen) await showPhoto(state.chosen);
}

async function showOffline() {
  find("offline").hidden = !(await isOffline(state.facts, state.backend.backend));
}

function wire() {
  find("language").addEventListener("click", switchLanguage);
  find("file").addEventListener("change", ({ target }) => {
    if (target.files[0]) showPhoto(target.files[0]);
    target.value = "";
  });
  find("camera").addEventListener("click", toggleCamera);
  find("flip").addEventListener("click", flipCamera);
  for (const id of ["show", "layer"]) find(id).addEventListener("change", showAttention);
  find("opacity").addEventListener("input", showAttention);
  find("heads").addEventListener("change", ({ target }) => {
    state.useFewShot = target.value === "few-shot";
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
  dismiss("image");
  state.chosen = file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    if (state.chosen !== file) return;
    state.chosen = state.photo;
    notifyUnreadable(file.name);
    return;
  }
  // Another photo may have been chosen meanwhile. Before the facts are there, nothing can be drawn:
  // the photo is shown again when the model is open.
  const draw = state.chosen === file && state.facts !== null;
  if (draw) {
    state.photo = file;
    setResult(null, { computing: !state.loading });
    showImage(bitmap, bitmap.width, bitmap.height, state.facts.preprocessing);
    describeStage(text("stage.shown"));
  }
  bitmap.close();
  if (draw && !state.loading) await classifyPhoto(file);
}

async function classifyPhoto(file) {
  try {
    const result = await state.engine.infer(file, file);
    if (state.photo === file) setResult(result);
  } catch (error) {
    if (state.photo !== file) return;
    setResult(null);
    notifyFailure(error, file.name);
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
  dismiss("image");
  const opening = camera.start();
  showCameraButton();
  try {
    if (!(await opening)) return;
  } catch (error) {
    refuseCamera(error);
    return;
  }
  state.chosen = state.photo = null;
  setResult(null);
  describeStage(text("stage.camera"));
  camera.follow((video) => {
    if (state.facts) showImage(video, video.videoWidth, video.videoHeight, state.facts.preprocessing);
  });
  classifyFrames();
  find("flip").hidden = !(await camera.several()) || !camera.running;
}

async function flipCamera() {
  find("flip").disabled = true;
  try {
    await camera.flip();
  } catch (error) {
    refuseCamera(error);
  }
  find("flip").disabled = false;
}

// One frame after the other, as fast as the model computes.
async function classifyFrames() {
  const { session } = camera;
  try {
    while (camera.session === session) {
      if (state.loading || !camera.hasFrame || document.hidden) {
        await new Promise((resolve) => setTimeout(resolve, 100));
        continue;
      }
      const result = await state.engine.infer(await createImageBitmap(camera.video), "camera");
      if (camera.session === session) setResult(result);
    }
  } catch (error) {
    if (camera.session !== session) return;
    stopCamera();
    notifyFailure(error);
  }
}

function refuseCamera(error) {
  stopCamera();
  notify(text("camera.refused", { reason: error.message }), { about: "image" });
}

function stopCamera() {
  if (!camera.running) return;
  camera.stop();
  find("flip").hidden = true;
  if (!state.result && !state.photo) clearStage();
  showCameraButton();
  showResult();
}

function showCameraButton() {
  find("camera").textContent = text(camera.running ? "camera.stop" : "camera.start");
  find("camera").classList.toggle("stop", camera.running);
}

// null: what is shown is not, or not yet, what the last result was computed from.
function setResult(result, { computing = false } = {}) {
  state.result = result;
  state.computing = computing;
  if (result) find("attention").hidden = !result.maps.length;
  state.fewShot?.showAvailable(canEmbedShown());
  showResult();
  showAttention();
}

function showResult() {
  const { result, facts } = state;
  const fewShot = state.useFewShot ? state.fewShot?.solved : null;
  let rows = [];
  if (result && fewShot) rows = fewShotScores(result.features, fewShot);
  else if (result?.logits) rows = ownScores(result.logits, facts);
  showBars(find("bars"), rows);
  find("note").hidden = !(rows.length && fewShot);
  const empty = facts?.classes || fewShot ? "result.empty" : "result.classless";
  find("empty").hidden = rows.length > 0 || state.loading !== null;
  find("empty").textContent = text(state.computing ? "result.computing" : empty);
  find("stage").classList.toggle("busy", state.computing);
  find("timing").hidden = !result;
  find("live").hidden = !rows.length;
  showNow();
  if (!result) return;
  find("run-ms").textContent = text("timing.ms", { value: number(result.run, result.run < 10 ? 1 : 0) });
  find("prepare-ms").textContent = text("timing.ms", { value: number(result.prepare, result.prepare < 10 ? 1 : 0) });
  if (!rows.length) return;
  announce(find("announcement"), rows[0], camera.running);
  find("live").classList.toggle("still", !camera.running);
  find("live").textContent = `${rows[0].label}  ${rows[0].shown}`;
}

// The best few-shot class of what is shown, beside the classes themselves.
function showNow() {
  const { result, fewShot } = state;
  find("now").hidden = !(result && fewShot?.solved);
  if (find("now").hidden) return;
  const [best] = fewShotScores(result.features, fewShot.solved);
  find("now").querySelector("b").textContent = text("result.best", { label: best.label, score: best.shown });
}

function showAttention() {
  const chosen = state.result?.maps.find(({ name }) => name === find("layer").value);
  setOpacity(find("opacity").value / 100);
  showHeat(find("show").checked ? chosen : null);
}

function headChanged() {
  const solved = state.fewShot?.solved ?? null;
  const had = !find("heads").hidden;
  const own = state.facts.classes > 0;
  find("heads").hidden = !(solved && own);
  if (solved && (!had || !own)) state.useFewShot = true;
  if (!solved) state.useFewShot = false;
  document.querySelector(`[name=head][value=${state.useFewShot ? "few-shot" : "own"}]`).checked = true;
  showResult();
}

// The feature of a photo for a few-shot class, and a small picture of it.
async function embed(file) {
  const { features } = await state.engine.infer(file, file);
  const bitmap = await createImageBitmap(file);
  const picture = await thumbnail(bitmap);
  bitmap.close();
  return { feature: features, picture };
}

function canEmbedShown() {
  return state.result !== null;
}

// The same of what is shown: the photo, or the camera's frame of this moment.
async function embedShown() {
  if (!camera.hasFrame) return state.result && { feature: state.result.features, picture: await thumbnail() };
  const [picture, frame] = await Promise.all([thumbnail(), createImageBitmap(camera.video)]);
  const { features } = await state.engine.infer(frame, "few-shot");
  return { feature: features, picture };
}

// An error of the engine: no photo, or a model that no longer runs, for instance after the GPU was lost.
function notifyFailure(error, name) {
  if (error.message === "unreadable") notifyUnreadable(name);
  else notify(text("run.failed", { reason: error.message }), { label: text("update.reload"), act: reload });
}

function notifyUnreadable(name) {
  notify(text("photo.bad", { name: name || text("photo.pasted") }), { about: "image" });
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
  showCameraButton();
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
  state.fewShot?.show();
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
