// Ways in for a photo: a file, the clipboard, a drop, the camera, and the samples of the server.
import { element } from "./elements.js";
import { text } from "./language.js";
import { picture } from "./pictures.js";

const find = (id) => document.getElementById(id);
let frame = null; // {open(blob, name), complain(words), chooseSample(id), offline}
let stream = null;

/** Wires everything that brings a photo; an offline page has only its own images. */
export function prepareImages(given) {
  frame = given;
  if (frame.offline) {
    find("ways").hidden = true;
    return;
  }
  find("file").addEventListener("change", ({ target }) => {
    takeFile(target.files[0]);
    target.value = "";
  });
  document.addEventListener("paste", ({ clipboardData }) => {
    const file = [...(clipboardData?.files ?? [])].find(({ type }) => type.startsWith("image/"));
    if (file) takeFile(file);
  });
  wireDrop();
  wireCamera();
}

/** Lists the samples as buttons with small pictures. */
export function showSamples(samples) {
  const buttons = samples.map(({ id, name, url }) =>
    element("button", {
      type: "button", class: "sample", "aria-pressed": "false", "aria-label": name, title: name, data: { id },
      on: { click: () => frame.chooseSample(id) },
    }, picture(url, { alt: "", width: 44, height: 44 })));
  find("samples").replaceChildren(...buttons);
}

function takeFile(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    frame.complain(text("frame.photo.not_image", { name: file.name }));
    return;
  }
  frame.open(file, file.name || text("frame.photo.pasted"));
}

function wireDrop() {
  let depth = 0; // how many elements the pointer has entered and not left
  const hover = (change) => {
    depth = Math.max(0, depth + change);
    find("drop").hidden = depth === 0;
  };
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragenter", (event) => hasFiles(event) && hover(1));
  document.addEventListener("dragleave", (event) => hasFiles(event) && hover(-1));
  document.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    hover(-depth);
    takeFile(event.dataTransfer.files[0]);
  });
}

function wireCamera() {
  const dialog = find("camera");
  find("camera-open").addEventListener("click", openCamera);
  find("camera-close").addEventListener("click", () => dialog.close());
  find("camera-take").addEventListener("click", takePhoto);
  dialog.addEventListener("close", stopCamera);
}

async function openCamera() {
  if (!navigator.mediaDevices) {
    frame.complain(text("frame.camera.insecure"));
    return;
  }
  try {
    const wished = { facingMode: { ideal: "environment" }, width: { ideal: 1280 } };
    stream = await navigator.mediaDevices.getUserMedia({ video: wished, audio: false });
  } catch {
    frame.complain(text("frame.camera.refused"));
    return;
  }
  find("camera").showModal();
  find("video").srcObject = stream;
  await find("video").play();
}

function takePhoto() {
  const video = find("video");
  const canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => {
    find("camera").close();
    if (blob) frame.open(blob, text("frame.photo.camera"));
  }, "image/jpeg", 0.92);
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
}
